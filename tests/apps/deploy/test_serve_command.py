"""`fedreid serve` as a user meets it, in a browser where there is one."""

import signal
import socket
import subprocess
import sys

import browser
import commands
import photo_trees
import pytest

import fedreid_jax as fr

MISSING = "pip install '.[serve]'"
TINY = {
  'model.features': (4, 8),
  'data.identities': 4,
  'data.target_identities': 4,
  'data.height': 8,
  'data.width': 8,
  'augment.pad': 1,
  'local.batch': 4,
  'evaluation.batch': 8,
  'execution.devices': 1,
}


@pytest.mark.parametrize('name', ['starlette', 'uvicorn'])
def test_a_missing_package_is_one_line_with_the_extra(name):
  # In a process of its own, where flags of other commands do not clash.
  program = f"""
import sys, types
for other in ('starlette', 'uvicorn'):
  sys.modules[other] = types.ModuleType(other)
from fedreid_jax import errors
from fedreid_jax.apps.deploy.commands import serve
serve.check()
sys.modules[{name!r}] = None
try:
  serve.check()
except errors.ConfigError as error:
  print(error.line())
"""
  line = subprocess.check_output([sys.executable, '-c', program], text=True)
  assert line.startswith(f'error[2]: no {name}: ')
  assert "— serve — pip install 'fedreid_jax[serve]'" in line


@pytest.mark.parametrize(
  'flags, code, message',
  [
    (['{run}'], 2, 'give --gallery=FOLDER or vectors.npy'),
    pytest.param(
      ['{run}', '--gallery={photos}', '--port=70000'],
      *(2, '--port=70000'),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      ['{run}', '--gallery={photos}', '--max_upload_mb=0'],
      *(2, '--max_upload_mb=0'),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      ['{run}', '--workdir={run}', '--gallery={photos}'],
      *(2, 'give one WORKDIR'),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      ['--gallery={photos}'],
      *(2, 'give the --workdir of a run'),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      ['{run}', '--gallery={run}/none'],
      *(3, 'does not exist'),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      ['{run}', '--gallery={photos}'],
      *(6, 'give another --port'),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      ['{run}', '--gallery={photos}', '--port=0'],
      *(4, 'config.json'),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_one_line_and_a_code(tmp_path, flags, code, message):
  if code != 2:  # the packages are looked for before the gallery
    pytest.importorskip('uvicorn', reason=MISSING)
  places = {'run': tmp_path / 'run', 'photos': tmp_path / 'photos'}
  places['run'].mkdir()
  photo_trees.save(places['photos'] / 'p0/a.png', 0, 0)
  given = [flag.format(**places) for flag in flags]
  with socket.create_server(('127.0.0.1', 0)) as used:
    if code == 6:
      given.append(f'--port={used.getsockname()[1]}')
    found, out, err = commands.launch_program('serve', *given)
  assert (found, out) == (code, ''), err
  assert err.startswith(f'error[{code}]: ') and message in err
  assert len(err.splitlines()) == 1


@pytest.fixture(scope='module')
def run_and_photos(tmp_path_factory):
  """(work directory, folder of the images of four persons)."""
  folder = tmp_path_factory.mktemp('serve')
  fr.train(fr.load_config('fedpav:smoke', TINY, rounds=1), folder / 'run')
  for person in range(4):
    for shot in range(2):
      path = folder / f'photos/person {person}/<i>_c{shot}.png'
      photo_trees.save(path, person, shot)
  return folder / 'run', folder / 'photos'


@pytest.fixture
def page(run_and_photos):
  """(address of the page of a running command, its folder of images)."""
  pytest.importorskip('uvicorn', reason=MISSING)
  workdir, photos = run_and_photos
  flags = f'--gallery={photos}', '--port=0', '--max_upload_mb=1'
  process = commands.start_program('serve', workdir, *flags)
  lines = []
  try:
    for line in process.stdout:
      lines.append(line)
      if line.startswith('next: '):
        break
    (address,) = [
      line.split()[1] for line in lines if line.startswith('address: ')
    ]
    yield address, photos
  finally:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
  assert (process.returncode, err) == (130, 'stopped by SIGINT\n')


def search(shown):
  """Searches for the photograph that was chosen."""
  shown.wait('!document.querySelector("#crop").hidden')
  shown.value('document.querySelector("#crop [type=submit]").click()')


SHOWN = '[...document.querySelectorAll("figure img")]'  # not those of dialogs


@pytest.mark.slow
@pytest.mark.skipif(browser.program() is None, reason='no Chromium on PATH')
def test_a_photograph_is_searched_for_in_a_browser(page, tmp_path):
  address, photos = page
  query = photos / 'person 2/<i>_c1.png'
  note = tmp_path / 'note.jpg'
  note.write_text('no image')
  large = tmp_path / 'large.jpg'
  large.write_bytes(bytes((1 << 20) + 1))
  with browser.opened(address, tmp_path / 'profile') as shown:
    shown.resize(400, 900)
    shown.drop(query)
    search(shown)
    shown.wait('document.querySelectorAll("ol.hits li").length === 8')
    first = shown.text('ol.hits li')
    assert first.split('\n') == [
      *('rank 1', first.split('\n')[1], 'identity person 2', 'camera 1'),
      *('person 2/<i>_c1.png', 'same file', 'why?'),
    ]
    shown.wait(f'{SHOWN}.every((i) => i.complete)')
    assert shown.value(f'{SHOWN}.every((i) => i.naturalWidth)')
    assert shown.value(f'{SHOWN}.length') == 9
    assert shown.value('document.documentElement.scrollWidth') <= 400
    assert shown.console == []
    shown.value('document.querySelectorAll("button.why")[1].click()')
    shown.wait('document.querySelectorAll("#groups img").length === 6')
    shown.wait(f'{SHOWN}.every((i) => i.complete)')
    assert shown.value(f'{SHOWN}.every((i) => i.naturalWidth)')
    assert shown.text('#asked').startswith('rank 2: person 2/<i>_c0.png')
    assert shown.text('#reason').startswith('exact parts of the similarity')
    assert shown.value('document.querySelector("#why").scrollWidth') <= 400
    shown.value('document.querySelector("#why form button").click()')
    assert shown.console == []
    shown.resize(1600, 900)
    shown.pick('#photograph', photos / 'person 0/<i>_c0.png')
    search(shown)
    shown.wait('document.querySelector("#title").textContent.includes("c0")')
    assert 'person 0/<i>_c0.png' in shown.text('ol.hits li')
    assert shown.console == []
    shown.drop(large)
    shown.wait('document.querySelector("#failure").textContent')
    assert shown.text('#failure').endswith('The file is larger than 1 MiB.')
    assert shown.console == []  # it was not sent
    shown.drop(note)
    search(shown)
    shown.wait('document.querySelector("#failure").textContent.match("JPEG")')
    assert shown.value('document.querySelector("#results").hidden')
    shown.press('Tab', 9)
    assert shown.value('document.activeElement.type') == 'reset'
    assert (
      shown.value('getComputedStyle(document.activeElement).outlineStyle')
      == 'solid'
    )
  assert [line for line in shown.console if '415' not in line] == []
