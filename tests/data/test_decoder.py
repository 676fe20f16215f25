import io
import struct
import threading
import zlib
from typing import get_args

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, ImageFile

from fedreid_jax import errors
from fedreid_jax.data import decoder
from fedreid_jax.data.decoder import Decoder


def chunk(kind, data):
  check = struct.pack('>I', zlib.crc32(kind + data))
  return struct.pack('>I', len(data)) + kind + data + check


def png(width, height, bits=8, colour=2, pixels=b''):
  """A PNG file of any header; without pixels it cannot be decoded."""
  header = struct.pack('>IIBBBBB', width, height, bits, colour, 0, 0, 0)
  chunks = (b'IHDR', header), (b'IDAT', zlib.compress(pixels)), (b'IEND', b'')
  return b'\x89PNG\r\n\x1a\n' + b''.join(chunk(*one) for one in chunks)


def png16(colour, channels):
  """A PNG file of 4x4 pixels of 16 bits a channel."""
  return png(4, 4, 16, colour, 4 * (b'\0' + b'\x9c\x40' * 4 * channels))


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
  for name in get_args(decoder.Resample):
    ours = decoder.decode(encode(pixels), Decoder(12, 9, resample=name))
    way = Image.Resampling[name.upper()]
    theirs = Image.fromarray(pixels).resize((9, 12), way)
    np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_only_fast_decoding_changes_pixels():
  noise = np.random.default_rng(0).integers(0, 255, (128, 64, 3), np.uint8)
  data = encode(Image.fromarray(noise).resize((256, 512)), 'JPEG', quality=95)
  full = Image.open(io.BytesIO(data)).resize((32, 64), Image.Resampling.BICUBIC)
  ours = decoder.decode(data, Decoder(64, 32))
  np.testing.assert_array_equal(ours, np.asarray(full))
  fast = decoder.decode(data, Decoder(64, 32, fast=True))
  differ = np.abs(fast.astype(int) - ours)
  assert 0 < differ.max() < 64


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
    (
      b'<html>not found</html>',
      'not an image in JPEG, PNG, WEBP, BMP, GIF or TIFF',
    ),
    (jpeg[: len(jpeg) // 2], 'truncated'),
    (jpeg[: len(jpeg) * 99 // 100], 'truncated'),
    (jpeg[:-2], 'truncated'),
    (encode(Image.new('I;16', (4, 4))), 'not 8 bits a channel'),
    (encode(Image.new('RGB', (1, 1))), '1x1 pixels'),
    (png(20000, 20000), 'more than max_pixels=40000000'),
    (png(10000, 9000), 'more than max_pixels=40000000'),
    (
      encode(Image.new('1', (8000, 5001))),
      '8000x5001 pixels, more than max_pixels=40',
    ),
  ):
    with pytest.raises(ValueError, match=why):
      decoder.decode(data, Decoder(8, 8))


def test_the_limit_on_pixels_is_a_choice():
  data = encode(Image.new('L', (20, 20)))
  assert decoder.decode(data, Decoder(8, 8, max_pixels=400)).shape == (8, 8, 3)
  with pytest.raises(
    ValueError, match='20x20 pixels, more than max_pixels=399'
  ):
    decoder.decode(data, Decoder(8, 8, max_pixels=399))


def tiff16():
  """A TIFF file of 4x4 pixels, RGB of 16 bits a channel."""
  pixels = b'\x40\x9c' * 48
  tags = {256: 4, 257: 4, 259: 1, 262: 2, 277: 3, 278: 4, 279: len(pixels)}
  end = 8 + 2 + 12 * (len(tags) + 2) + 4
  entries = [(tag, 3, 1, value) for tag, value in tags.items()]
  entries += [(258, 3, 3, end), (273, 4, 1, end + 6)]
  body = b''.join(struct.pack('<HHII', *entry) for entry in sorted(entries))
  head = b'II*\0' + struct.pack('<IH', 8, len(entries))
  return head + body + bytes(4) + struct.pack('<HHH', 16, 16, 16) + pixels


@pytest.mark.parametrize(
  'data', [png16(0, 1), png16(2, 3), png16(4, 2), png16(6, 4), tiff16()]
)
def test_16_bits_are_refused_by_their_header(data, monkeypatch):
  monkeypatch.setattr(ImageFile.ImageFile, 'load', None)  # no pixel is read
  with pytest.raises(ValueError, match='16., not 8 bits a channel'):
    decoder.decode(data, Decoder(8, 8))


def test_postscript_starts_no_program(monkeypatch):
  started = []
  monkeypatch.setattr(
    EpsImagePlugin, 'Ghostscript', lambda *a, **k: started.append(a)
  )
  eps = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n'
  Image.open(io.BytesIO(eps))  # Pillow left alone takes it
  with pytest.raises(ValueError, match='not an image in JPEG, PNG'):
    decoder.decode(eps, Decoder(8, 8))
  assert decoder.colour_file(eps) == eps
  assert not started


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


HOW = decoder.Decoder(4, 3)


@pytest.fixture
def paths(tmp_path):
  """Seven files, of which the third and the last cannot be read."""
  found = []
  for number in range(7):
    found.append(tmp_path / f'{number}.png')
    Image.new('RGB', (9, 8), (number, 0, 0)).save(found[-1])
  found[2].write_bytes(b'')
  found[6].unlink()
  return found


def test_positions_belong_to_pixels(paths):
  skipped = []
  found = [*decoder.read(paths, HOW, 3, lambda *bad: skipped.append(bad))]
  assert [rows.tolist() for rows, _ in found] == [[0, 1], [3, 4, 5], []]
  for rows, pixels in found:
    assert pixels.shape == (len(rows), 4, 3, 3) and pixels.dtype == np.uint8
    assert (pixels[..., 0] == rows[:, None, None]).all()
  assert skipped == [(2, 'empty file'), (6, 'No such file or directory')]


def test_a_file_that_cannot_be_read_is_named(paths):
  batches = decoder.read(paths, HOW, 2)
  assert next(batches)[0].tolist() == [0, 1]
  with pytest.raises(errors.DataError, match=r'empty file — .*2\.png'):
    next(batches)


def test_one_batch_is_decoded_ahead(paths, monkeypatch):
  decoded, decode, lock = [], decoder.decode, threading.Lock()

  def counting(data, how):
    with lock:
      decoded.append(data)
    return decode(data, how)

  monkeypatch.setattr(decoder, 'decode', counting)
  batches = decoder.read([paths[0]] * 100, HOW, 5)
  for number, _ in zip(range(1, 4), batches, strict=False):
    assert 5 * number <= len(decoded) <= 5 * (number + 1)
  batches.close()
  assert len(decoded) <= 20


def test_nothing_is_read_of_no_files():
  assert [*decoder.read([], HOW, 5)] == []


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'BMP', 'GIF', 'WEBP', 'TIFF'])
def test_files_that_end_early_are_in_doubt(kind, tmp_path):
  noise = np.random.default_rng(0).integers(0, 255, (64, 48, 3), np.uint8)
  data = encode(noise, kind)
  path = tmp_path / f'a.{kind.lower()}'
  for size, complete in ((len(data), True), (len(data) * 9 // 10, False)):
    path.write_bytes(data[:size])
    assert (decoder.doubt(path) == '') == complete
  path.write_bytes(data)
  assert decoder.doubt(path.rename(tmp_path / 'a.xyz')) == decoder.RENAMED


def hidden(kind, fill):
  """A cut-out whose transparent pixels hide a colour, as a PNG file."""
  rng = np.random.default_rng(0)
  seen = rng.integers(0, 256, (8, 4, 3), np.uint8)
  alpha = np.zeros((8, 4), np.uint8)
  alpha[2:6, 1:3] = 255
  colours = np.where(alpha[..., None] == 0, np.uint8(fill), seen)
  whole = Image.fromarray(np.dstack([colours, alpha]))
  stream, options = io.BytesIO(), {}
  if kind == 'P':
    index = np.arange(1, 33, dtype=np.uint8).reshape(8, 4)
    index[alpha == 0] = 0
    palette = np.zeros((256, 3), np.uint8)
    palette[0], palette[index] = fill, colours
    whole = Image.fromarray(index).convert('P')
    whole.putpalette(palette.ravel().tolist())
    options = {'transparency': 0}
  elif kind == 'LA':
    whole = Image.merge('LA', (whole.convert('L'), whole.getchannel('A')))
  whole.save(stream, 'PNG', **options)
  return stream.getvalue(), alpha


@pytest.mark.parametrize('kind', ['RGBA', 'LA', 'P'])
def test_hidden_colours_are_not_seen(kind):
  to = Decoder(8, 4, 3)
  images = []
  for fill in (0, 255, 120):
    data, alpha = hidden(kind, fill)
    images.append(decoder.decode(data, to))
    assert (images[-1][alpha == 0] == 255).all()
    opened = Image.open(io.BytesIO(decoder.colour_file(data)))
    np.testing.assert_array_equal(np.asarray(opened), images[-1])
  np.testing.assert_array_equal(images[0], images[1])
  np.testing.assert_array_equal(images[0], images[2])
  assert len(np.unique(images[0][alpha > 0])) > 3


def test_half_transparent_pixels_are_mixed_with_white():
  stream = io.BytesIO()
  Image.new('RGBA', (4, 8), (0, 100, 255, 51)).save(stream, 'PNG')
  found = decoder.decode(stream.getvalue(), Decoder(8, 4, 3))
  np.testing.assert_allclose(found[0, 0], [204, 224, 255], atol=1)
