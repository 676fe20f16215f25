"""Miniatures of every data set, rendered and written once a session."""

import shutil

import pytest

from fedreid_jax.data import miniatures


@pytest.fixture(scope='session')
def pictures():
  """Ten persons, 15 cameras, two shots, both modalities, 32x16 pixels."""
  return miniatures.render(10, height=32, width=16)


@pytest.fixture(scope='session')
def minis(pictures, tmp_path_factory):
  """`(name) -> root` of a miniature that tests must not change."""
  base = tmp_path_factory.mktemp('minis')

  def one(name):
    root = base / name
    if not root.exists():
      miniatures.write(name, root, pictures)
    return root

  return one


@pytest.fixture
def mini_copy(minis, tmp_path):
  """`(name) -> root` of a copy of a miniature for one test."""
  return lambda name: shutil.copytree(minis(name), tmp_path / name)


@pytest.fixture
def manifest_with_person_0(mini_copy):
  """A miniature of a manifest whose person 0 is in train and test."""
  root = mini_copy('csv')
  rows = (root / 'manifest.csv').read_text()
  for person in range(10):
    rows = rows.replace(f',person{person},', f',{person % 9},')
  (root / 'manifest.csv').write_text(rows)
  return root
