'use strict';
// Sends a photograph and shows the images of the gallery that are nearest to it.
// Names are set as text, so that no file name can be markup.

const form = document.querySelector('form');
const input = document.getElementById('photograph');
const state = document.getElementById('status');
const failure = document.getElementById('failure');
const results = document.getElementById('results');
const limit = Number(form.dataset.limit);
let running = new AbortController();

function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function picture(url, text) {
  const image = element('img');
  image.alt = text;
  image.src = url;
  image.addEventListener('error', () => {
    const gone = element('div', 'no picture', 'gone');
    gone.setAttribute('role', 'img');
    gone.setAttribute('aria-label', text);
    image.replaceWith(gone);
  });
  return image;
}

function caption(lines) {
  const made = element('figcaption');
  for (const [text, kind] of lines) {
    const line = made.appendChild(element('span', '', kind));
    // A narrow column breaks a path after a slash.
    text.split(/(?<=\/)/).forEach((part, k) => {
      if (k) line.append(document.createElement('wbr'));
      line.append(part);
    });
  }
  return made;
}

function shown(hit, rank) {
  const distance = `distance ${hit.distance.toFixed(4)}`;
  const lines = [[`rank ${rank}`, 'rank'], [distance]];
  if ('similarity' in hit) {
    lines.push([`similarity ${hit.similarity.toFixed(4)}`]);
  }
  if (hit.identity) lines.push([`identity ${hit.identity}`]);
  if (hit.camera) lines.push([`camera ${hit.camera}`]);
  lines.push([hit.name]);
  if (hit.same) lines.push(['same file', 'same']);
  const text = `rank ${rank}: ${hit.name}, ${distance}`;
  const figure = element('figure');
  figure.append(picture(`gallery/${hit.row}`, text), caption(lines));
  const item = element('li');
  item.append(figure);
  return item;
}

function show(name, found) {
  document.getElementById('title').textContent = `Query: ${name}`;
  results.querySelector('figure').replaceChildren(
    picture(found.query, `query: ${name}`),
    caption([['query', 'rank'], [name]]),
  );
  results.querySelector('ol').replaceChildren(
    ...found.hits.map((hit, k) => shown(hit, k + 1)),
  );
  results.hidden = false;
  const count = found.hits.length;
  say(`${count} nearest ${count === 1 ? 'image' : 'images'}, found in ` +
    `${found.seconds.toFixed(2)} s.`);
}

function say(text, fault = '') {
  state.textContent = text;
  failure.textContent = fault;
  if (fault) results.hidden = true;
}

async function send(file) {
  running.abort();
  const own = running = new AbortController();
  if (file.size > limit) {
    say('', `${file.name}: The file is larger than ${limit / 2 ** 20} MiB.`);
    return;
  }
  say(`Searching for ${file.name} …`);
  results.setAttribute('aria-busy', 'true');
  try {
    const response = await fetch('search', {
      method: 'POST',
      body: file,
      headers: {'Content-Type': 'application/octet-stream'},
      signal: own.signal,
    });
    if (response.ok) show(file.name, await response.json());
    else say('', `${file.name}: ${await response.text()}`);
  } catch (error) {
    if (own.signal.aborted) return;  // another search has replaced this one
    say('', `${file.name} was not searched for: the server does not answer, ` +
      'or the file cannot be read.');
  } finally {
    if (own === running) results.removeAttribute('aria-busy');
  }
}

input.addEventListener('change', () => {
  if (input.files.length) send(input.files[0]);
});
input.addEventListener('click', () => {
  input.value = '';  // the same file may be chosen again
});
form.addEventListener('submit', (event) => event.preventDefault());
document.addEventListener('dragover', (event) => {
  event.preventDefault();
  form.classList.add('over');
});
document.addEventListener('dragleave', (event) => {
  if (!event.relatedTarget) form.classList.remove('over');
});
document.addEventListener('drop', (event) => {
  event.preventDefault();
  form.classList.remove('over');
  const files = event.dataTransfer.files;
  if (files.length !== 1) {
    say('', 'Drop one image file.');
    return;
  }
  input.files = files;  // shows its name
  send(files[0]);
});
