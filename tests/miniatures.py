"""Miniatures of every data set, rendered and written once a session."""

import shutil

import pytest

from fedreid_jax.data.fixtures import render, write


@pytest.fixture(scope='session')
def pictures():
  """Ten persons, 15 cameras, two shots, both modalities, 32x16 pixels."""
  return render.render(10, height=32, width=16)


@pytest.fixture(scope='session')
def minis(pictures, tmp_path_factory):
  """`(name) -> root` of a miniature that tests must not change."""
  base = tmp_path_factory.mktemp('minis')

  def one(name):
    root = base / name
    if not root.exists():
      write.write(name, root, pictures)
    return root

  return one


@pytest.fixture
def mini_copy(minis, tmp_path):
  """`(name) -> root` of a copy of a miniature for one test."""
  return lambda name: shutil.copytree(minis(name), tmp_path / name)
