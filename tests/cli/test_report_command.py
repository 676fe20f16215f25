"""`fedreid report` as a user meets it."""

import shutil
import subprocess

import commands
import numpy as np
import pytest
from PIL import Image

TINY = 'smoke,rounds=1,model.features=(4,8),data.identities=4'


@pytest.mark.slow
def test_one_line_and_a_code(tmp_path):
  for flags, code, words in (
    ((), 2, '--workdir'),
    ((f'--workdir={tmp_path}', '--out=a.pdf'), 2, 'ends in .html'),
    ((f'--workdir={tmp_path}',), 4, 'config.json'),
  ):
    found, _, err = commands.launch_program('report', *flags)
    assert found == code and words in err and len(err.splitlines()) == 1
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_seeds_and_another_method_are_one_page(tmp_path):
  runs = [('fedpav', 0), ('fedpav', 1), ('fedprox', 0)]
  folders = [tmp_path / f'{name}{seed}' for name, seed in runs]
  for (name, seed), folder in zip(runs, folders, strict=True):
    code, _, err = commands.launch_program(
      *('train', f'{name}:{TINY},data.target_identities=4,seed={seed}'),
      f'--workdir={folder}',
    )
    assert code == 0, err
  page = tmp_path / 'all.html'
  code, out, err = commands.launch_program(
    'report', f'--workdir={",".join(map(str, folders))}', f'--out={page}'
  )
  assert code == 0, err
  assert out.splitlines()[0] == str(page)
  assert 'next: fedreid search' in out
  html = page.read_text()
  assert '<title>Report: fedpav, fedprox</title>' in html
  assert html.count('<td>2</td>') >= 3  # two seeds of fedpav
  assert 'best queries of mall' in html
  for width in (400, 1600):
    in_a_browser(page, width)


def in_a_browser(page, width):
  """Shows a page in Chromium, if it is installed: no error, and pictures."""
  browser = shutil.which('chromium')
  if browser is None:
    return
  picture = page.with_suffix('.png')
  done = subprocess.run(
    [browser, '--headless', '--no-sandbox', '--disable-gpu']
    + ['--enable-logging=stderr', f'--window-size={width},3000']
    + [f'--screenshot={picture}', page.as_uri()],
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0 and 'CONSOLE' not in done.stderr
  shown = np.asarray(Image.open(picture).convert('RGB')).astype(int)
  assert shown.shape[1] == width
  # Curves and photographs have colours; text and lines are grey.
  coloured = np.ptp(shown, axis=2) > 40
  assert coloured.mean() > 0.01
