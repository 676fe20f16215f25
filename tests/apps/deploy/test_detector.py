"""Boxes of persons by detectors that are made up for the test."""

import sys

import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.apps.deploy import detector, persons
from fedreid_jax.apps.deploy.detector import Detector, Settings

pytest.importorskip('onnxruntime', reason="pip install '.[detect]'")
pytest.importorskip('onnx', reason="pip install '.[export]'")

import made_up_detectors as detectors


def photograph(width, height, box):
  """A dark image with a white rectangle."""
  pixels = np.full((height, width, 3), 40, np.uint8)
  left, top, right, bottom = box
  pixels[top:bottom, left:right] = 255
  return Image.fromarray(pixels)


@pytest.mark.parametrize(
  'size, box',
  [
    ((64, 64), (10, 20, 30, 50)),
    ((128, 64), (40, 8, 90, 60)),
    ((64, 192), (12, 60, 48, 150)),
    ((300, 200), (0, 0, 150, 200)),
    ((32, 16), (4, 2, 20, 14)),
  ],
)
@pytest.mark.parametrize('white', ['1', '255'])
def test_a_bright_rectangle_is_found_in_pixels_of_the_photograph(
  tmp_path, size, box, white
):
  path = detectors.bright(tmp_path / 'd.onnx', float(white))
  own = Detector(path, Settings(largest=float(white)))
  (found,) = own.find(photograph(*size, box))
  # A pixel of the input is up to this many of the photograph, and a pixel at an
  # edge is partly dark.
  most = 1.5 * max(1, max(size) / detectors.SIDE)
  np.testing.assert_allclose(found[:4], box, atol=most)
  assert found.score == pytest.approx(0.9)
  assert own.find(photograph(*size, (0, 0, 0, 0))) == []
  # In the other range nothing is white, or nothing is dark.
  other = Detector(path, Settings(largest=256.0 - float(white)))
  assert [x[:4] for x in other.find(photograph(*size, box))] != [found[:4]]


def test_an_image_fits_into_the_input_by_hand():
  """A pixel of 4 x 2 is two of an input of 8 x 8; the lower half is grey."""
  pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10
  found, scale = detector.letterbox(Image.fromarray(pixels), 8, 8)
  assert found.shape == (1, 3, 8, 8) and scale == 2.0
  assert (found[0, :, 4:] == detector.GREY).all()
  assert found[0, :, 0, 0].tolist() == [0, 10, 20]
  assert found[0, :, 3, 7].tolist() == [210, 220, 230]
  found, scale = detector.letterbox(Image.new('RGB', (100, 10)), 32, 50)
  assert scale == 0.5 and (found[0, 0] == 0).sum() == 50 * 5


# Two persons, of whom one has a second box, and something else.
BOXES = np.float32(
  [[4, 4, 24, 44], [5, 6, 25, 45], [40, 10, 60, 60], [30, 30, 50, 50]]
)
SCORES = np.float32([0.7, 0.9, 0.6, 0.95])
LABELS = np.int64([0, 0, 0, 2])


def rows(before):
  """Anchors of the boxes, and many without anything."""
  found = np.zeros((40, before + 3), np.float32)
  found[:4, :2] = (BOXES[:, :2] + BOXES[:, 2:]) / 2
  found[:4, 2:4] = BOXES[:, 2:] - BOXES[:, :2]
  if before == 5:
    found[:4, 4] = 0.8
  found[np.arange(4), before + LABELS] = SCORES / (0.8 if before == 5 else 1)
  return found


FORMS = {
  'yolo8': (rows(4).T[None],),
  'yolo5': (rows(5)[None],),
}


@pytest.mark.parametrize('given', [True, False])
@pytest.mark.parametrize('form', FORMS)
def test_anchors_are_boxes_without_those_that_overlap(tmp_path, form, given):
  path = detectors.constant(tmp_path / 'd.onnx', *FORMS[form])
  settings = Settings(form=form if given else 'auto')
  found = Detector(path, settings).find(Image.new('RGB', (64, 64)))
  assert [x[:4] for x in found] == [(5, 6, 25, 45), (40, 10, 60, 60)]
  assert [x.score for x in found] == pytest.approx([0.9, 0.6])
  many = Detector(path, settings._replace(overlap=1.0))
  assert len(many.find(Image.new('RGB', (64, 64)))) == 3
  few = Detector(path, settings._replace(score=0.65))
  assert len(few.find(Image.new('RGB', (64, 64)))) == 1
  other = Detector(path, settings._replace(label=2))
  (one,) = other.find(Image.new('RGB', (64, 64)))
  assert one[:4] == (30, 30, 50, 50)


@pytest.mark.parametrize('batched', [True, False])
@pytest.mark.parametrize('order', [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_listed_boxes_are_taken_as_they_are(tmp_path, batched, order):
  arrays = [BOXES, SCORES, LABELS]
  if batched:
    arrays = [x[None] for x in arrays]
  path = detectors.constant(tmp_path / 'd.onnx', *(arrays[k] for k in order))
  # The photograph has twice the size of the input.
  found = Detector(path).find(Image.new('RGB', (128, 100)))
  assert [x[:4] for x in found] == [
    (10, 12, 50, 90),
    (8, 8, 48, 88),
    (80, 20, 120, 100),  # at the lower edge of the photograph
  ]
  assert [x.score for x in found] == pytest.approx([0.9, 0.7, 0.6])


def test_the_class_of_an_anchor_is_its_best_one(tmp_path):
  """An anchor is no person where something else has a higher score."""
  anchors = rows(4)
  anchors[1, 4 + 1] = 0.95
  path = detectors.constant(tmp_path / 'd.onnx', anchors.T[None])
  found = Detector(path).find(Image.new('RGB', (64, 64)))
  assert [x[:4] for x in found] == [(4, 4, 24, 44), (40, 10, 60, 60)]


def test_no_box_at_all(tmp_path):
  path = detectors.constant(
    tmp_path / 'd.onnx', BOXES[:0], SCORES[:0], LABELS[:0]
  )
  assert Detector(path).find(Image.new('RGB', (64, 64))) == []
  thin = np.float32([[10, 10, 11, 40], [-20, -20, -10, -10]])
  path = detectors.constant(tmp_path / 'e.onnx', thin, SCORES[:2], LABELS[:2])
  assert Detector(path).find(Image.new('RGB', (64, 64))) == []


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('overlap', [0.0, 0.3, 0.7])
def test_suppression_by_sets_of_pixels(seed, overlap):
  rng = np.random.default_rng(seed)
  low = rng.integers(0, 12, (30, 2))
  boxes = np.concatenate([low, low + rng.integers(1, 9, (30, 2))], 1)
  kept = []
  for number, (left, top, right, bottom) in enumerate(boxes.tolist()):
    own = {(x, y) for x in range(left, right) for y in range(top, bottom)}
    if all(len(own & other) <= overlap * len(own | other) for _, other in kept):
      kept.append((number, own))
  expected = [number for number, _ in kept]
  assert persons.suppress(boxes.astype(float), overlap) == expected
  assert 1 < len(expected) < 30 or overlap > 0.5


@pytest.mark.parametrize(
  'arrays, text',
  [
    ((np.zeros((1, 10, 10), np.float32),), r'float32 \[1, 10, 10\]'),
    ((np.zeros((2, 6, 50), np.float32),), r'\[2, 6, 50\]'),
    ((BOXES, SCORES), r'\[4, 4\], float32 \[4\]'),
    ((BOXES, SCORES[:3], LABELS), r'\[3\]'),
  ],
)
def test_outputs_of_an_unknown_form_are_one_line(tmp_path, arrays, text):
  path = detectors.constant(tmp_path / 'd.onnx', *arrays)
  with pytest.raises(errors.ConfigError, match=text) as info:
    Detector(path).find(Image.new('RGB', (64, 64)))
  line = info.value.line()
  assert 'boxes, scores and labels' in line and '\n' not in line
  for form in ('boxes', 'yolo8', 'yolo5'):
    fits = form.startswith('yolo') and arrays[0].shape == (1, 10, 10)
    one = Detector(path, Settings(form=form))
    if fits:
      assert one.find(Image.new('RGB', (64, 64))) == []
    else:
      with pytest.raises(errors.ConfigError, match='unknown form'):
        one.find(Image.new('RGB', (64, 64)))


def test_a_class_that_the_detector_does_not_have(tmp_path):
  path = detectors.constant(tmp_path / 'd.onnx', FORMS['yolo8'][0])
  with pytest.raises(errors.ConfigError, match='no class 3 among 3'):
    Detector(path, Settings(label=3)).find(Image.new('RGB', (64, 64)))


@pytest.mark.parametrize('shape', [(1, 1, 64, 64), (2, 3, 64, 64), (3, 64, 64)])
def test_inputs_of_another_form(tmp_path, shape):
  path = detectors.constant(tmp_path / 'd.onnx', BOXES, shape=shape)
  with pytest.raises(errors.ConfigError, match='single input, float32'):
    Detector(path)


def test_free_sides_of_an_input(tmp_path):
  path = detectors.constant(
    tmp_path / 'd.onnx',
    BOXES,
    SCORES,
    LABELS,
    shape=('n', 3, 'h', 'w'),
  )
  size = 2 * detector.SIDE
  found = Detector(path).find(Image.new('RGB', (size, size)))
  assert found[0][:4] == (10, 12, 50, 90)


def test_files_that_are_no_detectors(tmp_path, monkeypatch):
  with pytest.raises(errors.DataError, match='no such file'):
    Detector(tmp_path / 'none.onnx')
  (tmp_path / 'd.onnx').write_bytes(b'no network')
  with pytest.raises(errors.DataError, match='cannot be read') as info:
    Detector(tmp_path / 'd.onnx')
  assert '\n' not in info.value.line()
  monkeypatch.setitem(sys.modules, 'onnxruntime', None)
  with pytest.raises(errors.ConfigError) as info:
    Detector(tmp_path / 'd.onnx')
  assert "— --detect — pip install 'fedreid_jax[detect]'" in info.value.line()
