"""One picture under several names in a domain of a folder."""

import os
import shutil

import numpy as np
import photo_trees
import pytest

from fedreid_jax import errors
from fedreid_jax.data import cache, integrity, load


def loaded(root):
  data = {'root': str(root), 'height': 24, 'width': 12}
  return load.load(photo_trees.configured(data))


@pytest.mark.parametrize('link', [shutil.copy, os.link, os.symlink])
def test_a_copy_is_no_match_of_itself(tmp_path, link):
  """The picture of one person is there twice, of the others once."""
  for domain, person in ((d, p) for d in range(2) for p in range(3)):
    for shot in range(2 if person else 1):
      path = tmp_path / f'{domain}/{person}/{"ab"[shot]}.jpg'
      photo_trees.save(path, 10 * domain + person, shot)
    if not person:
      link(path, path.with_name('z.jpg'))
  found = loaded(tmp_path)
  (client,), (target,) = found.clients, found.targets
  assert client.num_images == 5 and len(target.images.identities) == 5
  # The person with one picture has no query.
  assert len(target.trials[0].query) == 2
  assert target.images.images().shape[0] == 5
  assert (
    'left out: 2 copies of other files of a domain; 0/z.jpg is 0/a.jpg'
  ) in found.notices


def test_a_picture_of_two_persons_is_refused(tmp_path):
  for person in range(2):
    photo_trees.save(tmp_path / f'a/{person}/x.jpg', person, 0)
  shutil.copy(tmp_path / 'a/0/x.jpg', tmp_path / 'a/1/y.jpg')
  with pytest.raises(errors.DataError) as caught:
    loaded(tmp_path)
  assert (
    "'1/y.jpg' and '0/x.jpg' are the same picture, of '1' and '0' — "
    f'{tmp_path}/a — remove the wrong one'
  ) in caught.value.line()


def test_a_listed_query_leaves_no_copy_in_the_gallery(tmp_path):
  root = photo_trees.boxes(tmp_path)
  name = '0005_c1s1_000000_01.jpg'
  before = loaded(root).targets[0].trials[0]
  shutil.copy(root / 'query' / name, root / 'bounding_box_test' / name)
  after = loaded(root).targets[0].trials[0]
  assert [*map(len, after)] == [*map(len, before)]


def test_arrays_of_earlier_versions_have_no_hashes_of_pictures(tmp_path):
  root = tmp_path / 'photos'
  for domain, person, shot in np.ndindex(2, 3, 2):
    path = root / f'{domain}/{person}/{shot}.png'
    photo_trees.save(path, 10 * domain + person, shot)
  photo_trees.save(root / '0/0/x.bmp', 0, 0)
  before = loaded(root).notices
  assert any('left out: 1 copy of' in line for line in before), before
  for path in cache.cache_dir().glob('images/*/manifest.json'):
    manifest = integrity.read(path)
    del manifest['pictures']
    integrity.write(path, manifest)
  assert loaded(root).notices == before


def test_a_picture_in_another_format_is_a_copy(tmp_path):
  root = tmp_path / 'photos'
  for domain, person, shot in np.ndindex(2, 3, 2):
    path = root / f'{domain}/{person}/{shot}.png'
    photo_trees.save(path, 10 * domain + person, shot)
  for end in ('bmp', 'tif'):
    photo_trees.save(root / f'0/0/x.{end}', 0, 0)
  found = loaded(root)
  assert found.clients[0].num_images == 6
  assert any('left out: 2 copies of other files' in x for x in found.notices)
  photo_trees.save(root / '1/1/x.bmp', 0, 0)
  with pytest.raises(errors.DataError, match='1 of 7 files of 1 is in 0 too'):
    loaded(root)
  photo_trees.save(root / '0/1/x.bmp', 0, 0)
  with pytest.raises(errors.DataError, match='are the same picture, of'):
    loaded(root)
