"""HEIC images with and without their package."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.apps.deploy import vectors
from fedreid_jax.data import cache, decoder, files, heic

HEAD = b'\0\0\0\x1cftypheic\0\0\0\0mif1heic'


@pytest.fixture
def missing(monkeypatch):
  """The package is not installed."""
  monkeypatch.setitem(sys.modules, 'pillow_heif', None)
  monkeypatch.setattr(heic, 'installed', lambda: False)
  heic._register.cache_clear()
  yield
  heic._register.cache_clear()


def photograph():
  """A HEIC file with a red left half, 64 x 48."""
  pytest.importorskip('pillow_heif', reason="pip install '.[heic]'")
  heic.register()
  pixels = np.zeros((48, 64, 3), np.uint8)
  pixels[:, :32] = 220, 10, 10
  stream = io.BytesIO()
  Image.fromarray(pixels).save(stream, 'HEIF', quality=95)
  return stream.getvalue()


def test_first_bytes():
  assert heic.is_heic(HEAD) and heic.is_heic(HEAD.replace(b'heic', b'mif1', 1))
  for other in (b'', b'ftypheic', HEAD.replace(b'heic', b'avif', 1)):
    assert not heic.is_heic(other)


def test_a_photograph_is_decoded(tmp_path):
  data = photograph()
  how = decoder.Decoder(12, 16)
  pixels = decoder.decode(data, how)
  assert pixels.shape == (12, 16, 3)
  np.testing.assert_allclose(pixels[6, 3], [220, 10, 10], atol=16)
  np.testing.assert_allclose(pixels[6, 12], [0, 0, 0], atol=16)
  path = tmp_path / 'a.HEIC'
  path.write_bytes(data)
  with decoder.open_image(path) as image:
    assert image.format == heic.FORMAT and image.size == (64, 48)
  with pytest.raises(ValueError, match='max_pixels=100'):
    decoder.open_image(data, 100)
  assert decoder.doubt(path)  # so that it is decoded
  with pytest.raises(ValueError):
    decoder.decode(data[: len(data) // 2], how)


def test_a_file_of_another_format_is_not_read_as_heic():
  stream = io.BytesIO()
  Image.new('RGB', (4, 4)).save(stream, 'PNG')
  with decoder.open_image(stream.getvalue()) as image:
    assert image.format == 'PNG'
  with pytest.raises(OSError, match='not an image in JPEG'):
    decoder.open_image(b'no image at all')


def test_without_the_package_the_reason_names_it(missing, tmp_path):
  with pytest.raises(ValueError, match=r'fedreid_jax\[heic\]'):
    decoder.decode(HEAD, decoder.Decoder(8, 8))
  path = tmp_path / 'a.heic'
  path.write_bytes(HEAD)
  with pytest.raises(OSError, match=r'fedreid_jax\[heic\]'):
    decoder.open_image(path)


def test_files_that_are_skipped_are_counted_and_named():
  names = ['b/C.HEIC', 'a.jpg', 'A.heif', 'notes.txt']
  found, others = heic.split(names)
  assert found == ['A.heif', 'b/C.HEIC'] and others == ['a.jpg', 'notes.txt']
  assert heic.skipped(found) == (
    "2 HEIC files skipped: A.heif, b/C.HEIC; pip install 'fedreid_jax[heic]'"
  )
  many = [f'{k}.heic' for k in range(25)]
  assert '19.heic, ...; pip' in heic.skipped(many)


def test_a_folder_of_heic_files_alone(missing, tmp_path):
  (tmp_path / 'A.heic').write_bytes(HEAD)
  with pytest.raises(errors.DataError, match='1 HEIC file skipped: A.heic'):
    vectors.folder_of(tmp_path, '--images', skip=False)
  assert files.image_ends() == files.IMAGES


def test_an_array_without_them_is_not_used_with_the_package(
  tmp_path, monkeypatch
):
  """The cache of a folder whose HEIC files were left out."""
  data = photograph()
  (tmp_path / 'a.heic').write_bytes(data)
  Image.new('RGB', (4, 4)).save(tmp_path / 'b.png')
  how = decoder.Decoder(8, 8, on_bad_image='skip')
  names = ['a.heic', 'b.png']
  with monkeypatch.context() as patch:
    patch.setitem(sys.modules, 'pillow_heif', None)
    patch.setattr(heic, 'installed', lambda: False)
    heic._register.cache_clear()
    images, manifest, before = cache.build(tmp_path, names, how)
    heic._register.cache_clear()
  assert manifest['kept'] == [1] and len(images) == 1
  images, manifest, after = cache.build(tmp_path, names, how)
  assert manifest['kept'] == [0, 1] and before != after
  one = cache.build(tmp_path, names[1:], how)[2]
  monkeypatch.setattr(heic, 'installed', lambda: False)
  assert cache.build(tmp_path, names[1:], how)[2] == one
