"""`fedreid report` as a user meets it."""

import io

import browser
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
  if browser.program() is not None:
    in_a_browser(page)


def in_a_browser(page):
  """Shows a page in Chromium: no error, and pictures."""
  # A profile of its own: a second browser with the user's would end at once.
  with browser.opened(page.as_uri(), page.parent / 'profile') as shown:
    for width in (400, 1600):
      shown.resize(width, 3000)
      shown.wait('[...document.images].every((i) => i.complete)')
      picture = Image.open(io.BytesIO(shown.picture())).convert('RGB')
      assert picture.size == (width, 3000)
      # Curves and photographs have colours; text and lines are grey.
      coloured = np.ptp(np.asarray(picture).astype(int), axis=2) > 40
      assert coloured.mean() > 0.01
    assert shown.console == []
