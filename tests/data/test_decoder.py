import io

import numpy as np
import pytest
from PIL import Image, ImageFile

from fedreid_jax.data import decoder
from fedreid_jax.data.decoder import Decoder


def encode(image, kind='PNG', **options):
  if isinstance(image, np.ndarray):
    image = Image.fromarray(image)
  stream = io.BytesIO()
  image.save(stream, kind, **options)
  return stream.getvalue()


@pytest.fixture
def pixels():
  return np.random.default_rng(0).integers(0, 255, (6, 4, 3), np.uint8)


def test_lossless_files_and_arrays_keep_every_pixel(pixels):
  plain = Decoder(6, 4)
  for data in (encode(pixels), encode(pixels, 'BMP'), pixels):
    np.testing.assert_array_equal(decoder.decode(data, plain), pixels)
  inverted = decoder.decode(pixels, Decoder(6, 4, invert=True))
  np.testing.assert_array_equal(inverted, 255 - pixels)


def test_size_and_resampling(pixels):
  for name in decoder.RESAMPLE:
    ours = decoder.decode(encode(pixels), Decoder(12, 9, resample=name))
    way = Image.Resampling[name.upper()]
    theirs = Image.fromarray(pixels).resize((9, 12), way)
    np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_large_jpeg_is_decoded_close_to_the_full_way():
  ramp = np.linspace(0, 255, 512)[:, None, None] * np.ones((1, 256, 3))
  data = encode(ramp.astype(np.uint8), 'JPEG', quality=95)
  ours = decoder.decode(data, Decoder(64, 32)).astype(int)
  full = Image.open(io.BytesIO(data)).resize((32, 64), Image.Resampling.BICUBIC)
  assert np.abs(ours - np.asarray(full)).max() <= 3


@pytest.mark.parametrize('mode', ['L', 'P', 'CMYK', 'RGBA', '1', 'LA'])
def test_every_mode_becomes_colour(mode):
  kind = 'TIFF' if mode == 'CMYK' else 'PNG'
  image = Image.new('RGB', (4, 6), (255, 255, 255)).convert(mode)
  data = encode(image, kind)
  assert (decoder.decode(data, Decoder(6, 4)) == 255).all()
  assert decoder.decode(data, Decoder(6, 4, channels=1)).shape == (6, 4, 1)


def test_first_frame_counts():
  frames = [Image.new('RGB', (4, 4), c) for c in ('black', 'white')]
  data = encode(frames[0], 'GIF', save_all=True, append_images=frames[1:])
  assert (decoder.decode(data, Decoder(4, 4)) == 0).all()


def test_orientation_tag_turns_the_pixels(pixels):
  exif = Image.Exif()
  exif[0x0112] = 6  # the right side of the file is the top of the scene
  data = encode(pixels, 'PNG', exif=exif)
  turned = decoder.decode(data, Decoder(4, 6))
  np.testing.assert_array_equal(turned, np.rot90(pixels, -1))


def test_content_tells_the_format(pixels):
  data = encode(pixels, 'WEBP', lossless=True)  # whatever the file is called
  np.testing.assert_array_equal(decoder.decode(data, Decoder(6, 4)), pixels)


def test_broken_files_are_refused(pixels):
  big = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
  jpeg = encode(big, 'JPEG')
  for data, why in (
    (b'', 'empty file'),
    (b'<html>not found</html>', 'cannot identify'),
    (jpeg[: len(jpeg) // 2], 'truncated'),
    (jpeg[: len(jpeg) * 99 // 100], 'truncated'),
    (jpeg[:-2], 'truncated'),
    (encode(Image.new('I;16', (4, 4))), 'not 8 bits a channel'),
    (encode(Image.new('RGB', (1, 1))), '1x1 pixels'),
    (encode(Image.new('1', (20000, 20000))), '400000000 pixels'),
  ):
    with pytest.raises(ValueError, match=why):
      decoder.decode(data, Decoder(8, 8))


def test_half_images_are_refused_whoever_allowed_them(monkeypatch):
  monkeypatch.setattr(ImageFile, 'LOAD_TRUNCATED_IMAGES', True)
  big = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
  jpeg = encode(big, 'JPEG')
  with pytest.raises(ValueError, match='truncated'):
    decoder.decode(jpeg[: len(jpeg) // 2], Decoder(64, 64))


def test_files_of_colour_are_kept_and_others_made_so(pixels):
  jpeg = encode(pixels, 'JPEG')
  assert decoder.colour_file(jpeg) is jpeg
  assert decoder.colour_file(b'junk') == b'junk'
  grey = decoder.colour_file(encode(pixels[..., 0]))
  with Image.open(io.BytesIO(grey)) as image:
    assert image.mode == 'RGB'
    np.testing.assert_array_equal(np.asarray(image)[..., 2], pixels[..., 0])
