"""Damaged JPEG files, and those that only look so."""

import io

import numpy as np
import pytest
from PIL import Image, ImageFilter

from fedreid_jax.data import decoder
from fedreid_jax.data.decoder import Decoder

SMALL = Decoder(32, 16)


def person(size=(128, 256)):
  noise = np.random.default_rng(0).integers(0, 255, (32, 16, 3), np.uint8)
  return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def encode(image, **options):
  stream = io.BytesIO()
  image.save(stream, 'JPEG', **{'quality': 90} | options)
  return stream.getvalue()


def zeroed(data, first, last):
  """Zeros from and to a share of the file."""
  start, stop = int(first * len(data)), int(last * len(data))
  return data[:start] + bytes(stop - start) + data[stop:]


HOWS = [
  {},
  {'quality': 30},
  {'subsampling': 0},
  {'optimize': True, 'quality': 95},
  {'progressive': True, 'quality': 95},
]


@pytest.mark.parametrize('how', HOWS)
@pytest.mark.parametrize('span', [(0.5, 0.55), (0.3, 1.0), (0.9, 1.0)])
def test_zeroed_bytes_are_refused(how, span):
  data = encode(person(), **how)
  assert decoder.decode(data, SMALL).any()
  with pytest.raises(ValueError, match='zeroed bytes|truncated'):
    decoder.decode(zeroed(data, *span), SMALL)


@pytest.mark.parametrize('how', HOWS)
@pytest.mark.parametrize('mode', ['RGB', 'L', 'CMYK'])
@pytest.mark.parametrize('kind', ['flat', 'cut out', 'smooth'])
def test_flat_images_are_no_damage(how, mode, kind):
  image = Image.new('RGB', (640, 1280), 'white')
  if kind == 'cut out':
    image.paste(person(), (256, 500))
  if kind == 'smooth':
    image = person((640, 1280)).filter(ImageFilter.GaussianBlur(60))
  data = encode(image.convert(mode), **how, comment=bytes(500))
  assert decoder.decode(data, SMALL).shape == (32, 16, 3)
  # What follows the end mark is not of the image.
  assert decoder.decode(data + bytes(500), SMALL).shape == (32, 16, 3)


def test_a_zeroed_table_is_refused():
  data = encode(person())
  place = data.index(b'\xff\xdb') + 10
  with pytest.raises(ValueError, match='table of quantisation'):
    decoder.decode(data[:place] + bytes(20) + data[place + 20 :], SMALL)


@pytest.mark.parametrize('orientation', [1, 3, 6, 8])
def test_fast_decoding_is_of_the_size_before_the_turn(orientation):
  """A turned file is as near to the exact pixels as an upright one."""
  image = person((512, 256))
  turns = {3: 180, 6: 90, 8: 270}.get(orientation, 0)
  exif = Image.Exif()
  exif[0x0112] = orientation
  data = encode(image.rotate(turns, expand=True), exif=exif)
  exact, fast = (
    decoder.decode(data, Decoder(128, 64, fast=fast)).astype(int)
    for fast in (False, True)
  )
  assert 0 < np.abs(exact - fast).mean() < 1.5
