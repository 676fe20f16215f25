"""Answers to queries, and files that are the query's own."""

import shutil

import numpy as np
import pytest

import fedreid_jax as fr
from fedreid_jax.apps.deploy.search import image_search

NAMES = ['a', 'b', 'copy of a', 'd', 'e']


@pytest.fixture
def root(tmp_path):
  """Five files in a folder; the third has the bytes of the first."""
  for name in NAMES:
    (tmp_path / name).write_text(name)
  shutil.copyfile(tmp_path / 'a', tmp_path / 'copy of a')
  return tmp_path


def search(root, queries, k, **options):
  """Searches where the file at position p has the vector [p]."""
  points = np.arange(5, dtype=np.float32)[:, None]
  gallery = fr.Gallery(points, np.arange(5))
  at = np.array([[value] for value in queries.values()], np.float32)
  return image_search.search(gallery, root, NAMES, at, [*queries], k, **options)


def names(answer):
  return [hit.name for hit in answer.hits]


def test_the_nearest_first(root, tmp_path_factory):
  other = tmp_path_factory.mktemp('other') / 'query'
  other.write_text('another')
  answers = search(root, {other: 0.9, root / 'e': 4}, 2)
  assert [answer.query for answer in answers] == [other, root / 'e']
  assert [names(answer) for answer in answers] == [['b', 'a'], ['e', 'd']]
  first = answers[0].hits[0]
  assert first.path == root / 'b' and not first.same
  assert first.distance == pytest.approx(0.1, abs=1e-6)
  assert [hit.same for hit in answers[1].hits] == [True, False]


def test_the_query_and_its_copies_are_marked_or_left_out(root):
  query = {root / 'a': 0}
  (answer,) = search(root, query, 4)
  assert [hit.same for hit in answer.hits] == [True, False, True, False]
  for k, expected in ((1, 'b'), (2, 'bd'), (3, 'bde'), (4, 'bde'), (9, 'bde')):
    (answer,) = search(root, query, k, exclude_same_file=True)
    assert names(answer) == list(expected)


def test_a_link_and_a_copy_elsewhere_are_the_same_file(root, tmp_path_factory):
  folder = tmp_path_factory.mktemp('queries')
  shutil.copyfile(root / 'b', folder / 'copy')
  (folder / 'link').symlink_to(root / 'b')
  for query in (folder / 'copy', folder / 'link'):
    (answer,) = search(root, {query: 1}, 2)
    assert [(hit.name, hit.same) for hit in answer.hits] == [
      ('b', True),
      ('a', False),
    ]


def test_more_than_the_gallery_has(root):
  (answer,) = search(root, {root / 'd': 3}, 50)
  assert sorted(names(answer)) == sorted(NAMES)


def test_images_that_are_gone_have_their_path_only(root):
  for name in NAMES:
    (root / name).unlink()
  (answer,) = search(root, {root / 'd': 3}, 2, exclude_same_file=True)
  assert names(answer) == ['copy of a', 'e']
