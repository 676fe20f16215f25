'use strict';
// Sends a photograph, or a part of it, and shows the images of the gallery that
// are nearest to it, and why one of them matches.
// Names are set as text, so that no file name can be markup.

const form = document.getElementById('choose');
const crop = document.getElementById('crop');
const photo = document.getElementById('photo');
const why = document.getElementById('why');
const zoom = document.getElementById('zoom');
const input = document.getElementById('photograph');
const state = document.getElementById('status');
const failure = document.getElementById('failure');
const results = document.getElementById('results');
const limit = Number(form.dataset.limit);
const EDGES = ['left', 'top', 'right', 'bottom'];
let running = new AbortController();
let chosen = null;  // the file
let searched = null;  // the file and the part of the results
let explaining = new AbortController();
let start = null;  // where a pointer began to mark a part, in percent
let enlarged = 0;  // position of the image in the dialog

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
  if (hit.strangers) lines.push([`strangers as near: ${hit.strangers}`]);
  if (hit.identity) lines.push([`identity ${hit.identity}`]);
  if (hit.camera) lines.push([`camera ${hit.camera}`]);
  lines.push([hit.name]);
  if (hit.origin) lines.push([hit.origin]);
  if (hit.same) lines.push(['same file', 'same']);
  const text = `rank ${rank}: ${hit.name}, ${distance}`;
  const figure = element('figure');
  const larger = element('button', '', 'zoom');
  larger.type = 'button';
  larger.dataset.row = hit.row;
  larger.dataset.text = text;
  larger.append(picture(`gallery/${hit.row}`, `enlarge ${text}`));
  larger.addEventListener('click', () => enlarge(rank - 1));
  const reason = element('button', 'why?', 'why');
  reason.type = 'button';
  reason.setAttribute('aria-label', `why does ${text} match?`);
  reason.addEventListener('click', () => explain(hit.row, text));
  figure.append(larger, caption(lines), reason);
  const item = element('li');
  item.append(figure);
  return item;
}

function group({title, similarity, pictures}) {
  const made = element('section');
  made.append(element('h3', title), element('p', similarity));
  const pair = made.appendChild(element('div', '', 'pair'));
  for (const {name, url, lines} of pictures) {
    const figure = pair.appendChild(element('figure'));
    const shown = lines.map((line) => [line]);
    figure.append(
      picture(url, `${title}: ${name}`),
      caption([[name, 'rank'], ...shown]),
    );
  }
  return made;
}

function swatch([colour, text]) {
  const made = element('span');
  made.appendChild(element('i')).style.background = colour;
  made.append(text);
  return made;
}

function fill(reason, found = {legend: {}, groups: [], note: ''}) {
  document.getElementById('reason').textContent = reason;
  document.getElementById('legend').replaceChildren(
    ...Object.entries(found.legend).map(swatch),
  );
  document.getElementById('groups').replaceChildren(...found.groups.map(group));
  document.getElementById('note').textContent = found.note;
}

// The photograph is sent again: the server does not keep it.
async function explain(row, text) {
  explaining.abort();
  const own = explaining = new AbortController();
  document.getElementById('asked').textContent = text;
  fill('Computing why …');
  if (!why.open) why.showModal();
  try {
    const {file, part} = searched;
    const response = await post(`why/${row}?part=${part}`, file, own.signal);
    if (response.ok) {
      const found = await response.json();
      fill(found.way, found);
    } else fill(await response.text());
  } catch (error) {
    if (!own.signal.aborted) fill('The server does not answer.');
  }
}

function post(url, body, signal) {
  const headers = {'Content-Type': 'application/octet-stream'};
  return fetch(url, {method: 'POST', body, headers, signal});
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

// Arrow keys go to the images before and after.
function enlarge(position) {
  const all = [...results.querySelectorAll('button.zoom')];
  enlarged = Math.max(0, Math.min(position, all.length - 1));
  const {row, text} = all[enlarged].dataset;
  const image = zoom.querySelector('img');
  image.alt = text;
  image.src = `gallery/${row}/large`;
  document.getElementById('zoomed').textContent = text;
  if (!zoom.open) zoom.showModal();
}

function part() {
  return EDGES.map((edge) => Number(crop.elements[edge].value));
}

function mark(values) {
  EDGES.forEach((edge, k) => {
    crop.elements[edge].value = Math.round(values[k]);
  });
  outline();
}

function outline() {
  const [left, top, right, bottom] = part();
  const box = document.getElementById('box').style;
  box.left = `${left}%`;
  box.top = `${top}%`;
  box.width = `${Math.max(right - left, 0)}%`;
  box.height = `${Math.max(bottom - top, 0)}%`;
}

function place(event) {
  const area = photo.getBoundingClientRect();
  const share = (at, from, size) =>
    Math.max(0, Math.min(100, 100 * (at - from) / size));
  return [
    share(event.clientX, area.left, area.width),
    share(event.clientY, area.top, area.height),
  ];
}

// Shows a file, of which a part may be marked before the search.
function choose(file) {
  if (file.size > limit) {
    say('', `${file.name}: The file is larger than ${limit / 2 ** 20} MiB.`);
    return;
  }
  running.abort();
  chosen = file;
  say('');
  results.hidden = true;
  document.getElementById('chosen').textContent = file.name;
  const image = photo.querySelector('img');
  photo.hidden = true;  // a browser cannot show every format
  image.onload = () => {
    photo.hidden = false;  // half as high as the window, however small it is
    const ratio = image.naturalWidth / image.naturalHeight;
    image.width = Math.min(crop.clientWidth, innerHeight / 2 * ratio);
  };
  const reader = new FileReader();
  reader.addEventListener('load', () => { image.src = reader.result; });
  reader.readAsDataURL(file.slice(0, file.size, file.type || 'image/jpeg'));
  mark([0, 0, 100, 100]);
  crop.hidden = false;
  crop.querySelector('[type=submit]').focus();
}

function say(text, fault = '') {
  state.textContent = text;
  failure.textContent = fault;
  if (fault) results.hidden = true;
}

async function send(file) {
  running.abort();
  const own = running = new AbortController();
  const [left, top, right, bottom] = part();
  if (left >= right || top >= bottom) {
    say('', 'The part has no area: left must be below right, top below bottom.');
    return;
  }
  const cut = [left, top, right, bottom].map((edge) => edge / 100).join(',');
  say(`Searching for ${file.name} …`);
  results.setAttribute('aria-busy', 'true');
  try {
    const response = await post(`search?part=${cut}`, file, own.signal);
    if (response.ok) {
      const found = await response.json();
      searched = {file, part: cut};
      show(file.name, found);
    } else say('', `${file.name}: ${await response.text()}`);
  } catch (error) {
    if (own.signal.aborted) return;  // another search has replaced this one
    say('', `${file.name} was not searched for: the server does not answer, ` +
      'or the file cannot be read.');
  } finally {
    if (own === running) results.removeAttribute('aria-busy');
  }
}

input.addEventListener('change', () => {
  if (input.files.length) choose(input.files[0]);
});
input.addEventListener('click', () => {
  input.value = '';  // the same file may be chosen again
});
form.addEventListener('submit', (event) => event.preventDefault());
crop.addEventListener('submit', (event) => {
  event.preventDefault();
  if (chosen) send(chosen);
});
crop.addEventListener('reset', (event) => {
  event.preventDefault();
  mark([0, 0, 100, 100]);
});
crop.addEventListener('input', outline);
photo.addEventListener('pointerdown', (event) => {
  event.preventDefault();
  photo.setPointerCapture(event.pointerId);
  start = place(event);
});
photo.addEventListener('pointermove', (event) => {
  if (!start) return;
  const [x, y] = place(event);
  const [left, right] = [Math.min(x, start[0]), Math.max(x, start[0])];
  const [top, bottom] = [Math.min(y, start[1]), Math.max(y, start[1])];
  // A click or a slip marks nothing.
  if (right - left >= 2 && bottom - top >= 2) mark([left, top, right, bottom]);
});
for (const end of ['pointerup', 'pointercancel']) {
  photo.addEventListener(end, () => { start = null; });
}
zoom.addEventListener('keydown', (event) => {
  const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (step) enlarge(enlarged + step);
});
for (const dialog of [zoom, why]) {
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog) dialog.close();  // outside the content
  });
}
why.addEventListener('close', () => explaining.abort());
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
  choose(files[0]);
});
