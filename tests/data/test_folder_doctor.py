"""Checks of photographs of one's own."""

import itertools
import shutil

import photo_trees
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data.benchmark import doctor
from fedreid_jax.data.folder import doctor as of_photographs


def found(root, **how):
  report = of_photographs.examine(root, **how).report
  return [tuple(finding) for finding in report.findings]


def test_a_sound_folder(tmp_path):
  photo_trees.domains(tmp_path)
  examined = of_photographs.examine(tmp_path, deep=True)
  assert examined.layout == 'domain/identity/image'
  assert not (examined.report.findings or examined.notes)
  assert [(row.split, *row.found) for row in examined.report.rows] == [
    (place, 16, 4, 2) for place in sorted(photo_trees.PLACES)
  ]


def test_what_is_wrong_is_found(tmp_path):
  a, b = (tmp_path / domain for domain in 'ab')
  for domain, person, shot in itertools.product('ab', '123', '01'):
    number = 10 * ord(domain) + int(person)
    path = tmp_path / domain / person / f'{shot}.jpg'
    photo_trees.save(path, number, int(shot))
  shutil.copy(a / '1/0.jpg', a / '1/x.jpg')
  shutil.copy(b / '1/0.jpg', b / '2/x.jpg')
  shutil.copy(a / '3/0.jpg', b / '3/x.jpg')
  (a / '3/1.jpg').unlink()
  cut = a / '2/0.jpg'
  cut.write_bytes(cut.read_bytes()[:-20])
  Image.new('RGB', (9, 9)).save(tmp_path / 'stray.png')
  (tmp_path / 'notes.txt').touch()
  assert [what for wrong, what in found(tmp_path) if not wrong] == [
    'left out: 1 copy of other files of a domain; 1/x.jpg is 1/0.jpg',
    'persons of a with one image, 1: 3',
    'the same content: 1 file of a and of b too',
  ]
  wrong = [what for wrong, what in found(tmp_path) if wrong]
  assert wrong[0].startswith('unreadable files, 1: 2/0.jpg (')
  assert (
    wrong[1] == "'2/x.jpg' and '1/0.jpg' are the same picture, of '2' and '1'"
  )
  examined = of_photographs.examine(tmp_path)
  assert examined.report.skipped == '1 .png, 1 .txt'
  assert examined.notes == [
    f'left out: 1 image directly in {tmp_path}, such as stray.png; images are '
    'in the folders of persons'
  ]
  with pytest.raises(errors.DataError, match='2 errors'):
    doctor.check(examined.report, tmp_path)


@pytest.mark.parametrize(
  'domains, people, said',
  [
    ([''], 2, '2 identities, of which 2 have two images; give at least three'),
    ([''], 3, ''),
    (['a', 'b'], 0, 'no identity of b has two images; add images'),
  ],
)
def test_a_folder_without_a_test_is_an_error(tmp_path, domains, people, said):
  for domain, person in itertools.product(domains, range(3)):
    for shot in range(1 + (person < people)):
      path = tmp_path / domain / f'p{person}' / f'{"xy"[shot]}.jpg'
      if person < people or len(domains) > 1:
        photo_trees.save(path, 10 * len(domain) + person, shot)
  wrong = [what for is_error, what in found(tmp_path) if is_error]
  assert len(wrong) == bool(said) and all(said in what for what in wrong)
