"""Exported files and folders in the programs that read them.

`.ci/outside` installs these programs in an environment of their own, which has
neither this package nor JAX, and names its Python in `OUTSIDE_PYTHON`.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import toy_embedding
from PIL import Image

from fedreid_jax.apps.deploy import image_input, onnx_file, trackers_folder
from fedreid_jax.data import decoder as decoding
from fedreid_jax.models.weights import sources

SCRIPTS = Path(__file__).parents[2] / 'outside'
PYTHON = os.environ.get('OUTSIDE_PYTHON', '')
# What the trackers' reader knows, by the name of a folder.
READ = {
  'osnet_x1_0': {'name': 'osnet', 'neck': 'mapping', 'bottleneck': 512},
  'resnet50': {'name': 'resnet50', 'last_stride': 2, 'feature': 'feature'},
}

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(not PYTHON, reason='run .ci/outside'),
]


def run(script, *arguments):
  """Runs a script of `tests/outside`."""
  command = [PYTHON, SCRIPTS / script, *arguments]
  environment = {n: x for n, x in os.environ.items() if n != 'PYTHONPATH'}
  done = subprocess.run(
    list(map(str, command)),
    capture_output=True,
    text=True,
    cwd=Path(arguments[0]).parent,
    env=environment,
    timeout=600,
  )
  assert done.returncode == 0, done.stderr


def write(found, path):
  path.write_bytes(onnx_file.encode(found, {'summary': 'a program'}))
  return path


def test_boxmot_has_the_vectors(tmp_path, monkeypatch):
  images, out = tmp_path / 'x.npy', tmp_path / 'y.npy'
  np.save(images, toy_embedding.pixels(5)[..., ::-1])
  own = {'imagenet': sources.Pixels(toy_embedding.MEAN, toy_embedding.STD)}
  own['normalised'] = sources.SOURCES['torchvision'].pixels
  programs, wanted = [], []
  for values, statistics in own.items():
    monkeypatch.setattr(toy_embedding, 'MEAN', statistics.mean)
    monkeypatch.setattr(toy_embedding, 'STD', statistics.std)
    received = image_input.ImageInput('nchw', values)
    found = toy_embedding.tiny('resnet18', flip=True, received=received)
    programs.append(write(found, tmp_path / f'{values}.onnx'))
    wanted.append(toy_embedding.expected(found, 5))
  run('boxmot_vectors.py', images, out, *programs)
  assert np.std(wanted) > 0.01
  wanted /= np.linalg.norm(wanted, axis=2, keepdims=True)
  np.testing.assert_allclose(np.load(out), wanted, rtol=0, atol=1e-4)


def test_openvino_has_the_vectors(tmp_path):
  images, out = tmp_path / 'x.npy', tmp_path / 'y.npy'
  np.save(images, toy_embedding.pixels(5))
  found = toy_embedding.tiny('vit')
  run('openvino_vectors.py', images, out, write(found, tmp_path / 'a.onnx'))
  wanted = toy_embedding.expected(found, 5)
  assert wanted.std() > 0.01
  np.testing.assert_allclose(np.load(out), wanted, rtol=0, atol=1e-4)


def test_the_reader_of_the_trackers_has_the_vectors(tmp_path):
  files, out = tmp_path / 'files', tmp_path / 'out'
  decoder = decoding.Decoder(height=64, width=32)
  rng = np.random.default_rng(0)
  for place in (files, out):
    place.mkdir()
  pixels = []
  for k, size in enumerate([(32, 64), (45, 120), (20, 33)]):
    image = Image.fromarray(rng.integers(0, 256, (9, 5, 3), np.uint8))
    path = files / f'{k}.png'
    image.resize(size).save(path)
    pixels.append(decoding.decode(path.read_bytes(), decoder))
  wanted = {}
  for name, fields in READ.items():
    found = toy_embedding.make(shape=(64, 32, 3), **fields)
    (tmp_path / name).mkdir()
    for file, content in trackers_folder.encode(
      found, {'preprocessing': decoder._asdict()}
    ).items():
      (tmp_path / name / file).write_bytes(content)
    modalities = np.zeros(len(pixels), np.int32)
    wanted[name] = found.evaluate(np.stack(pixels), modalities)
  run('reid_vectors.py', files, out, *(tmp_path / name for name in READ))
  for name, vectors in wanted.items():
    assert vectors.std() > 0.01
    for got in np.load(out / f'{name}.npy'):  # of files, and of a frame
      np.testing.assert_allclose(got, vectors, rtol=0, atol=1e-4)
