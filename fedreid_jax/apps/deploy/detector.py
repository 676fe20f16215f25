"""Boxes of persons in a photograph, by a detector in an ONNX file.

The detector is the user's. Its only input is float32 `[1, 3, H, W]`, RGB: the
photograph is resized to fit, with its ratio of sides, and the rest is filled
with grey at the right and at the bottom ("letterbox"). Boxes are in pixels of
this input. The outputs have one of three forms:

  boxes  boxes `[M, 4]` (left, top, right, bottom), scores `[M]` and labels
         `[M]`, with or without a first axis of one image, as detectors of
         torchvision and exports with their own suppression give
  yolo8  `[1, 4 + C, A]`: for each of A anchors the centre, the width and the
         height, and the scores of C classes (YOLOv8 and later)
  yolo5  `[1, A, 5 + C]`: the same with a score of any object before the
         classes, by which their scores are multiplied (YOLOv5, YOLOX with
         decoded boxes)

Of overlapping boxes of the last two the best one is kept.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.apps.deploy.persons import Box, suppress, within
from fedreid_jax.core import plugins

Form = Literal['auto', 'boxes', 'yolo8', 'yolo5']
FORMS = get_args(Form)
GREY = 114  # of the filling, as detectors are trained with
SIDE = 640  # of an input whose height or width is free
EXPECTED = (
  'give a detector with boxes, scores and labels, or with one output '
  '[1, 4 + classes, n] or [1, n, 5 + classes]; see docs/search.md'
)
# Candidate boxes `[M, 4]` and their scores `[M]`.
Candidates = tuple[np.ndarray, np.ndarray]


class Settings(NamedTuple):
  """Settings of a detector; the flags of `embed` describe them."""

  form: str = 'auto'
  largest: float = 1.0  # value of white in the input, 1 or 255
  score: float = 0.5  # smallest score of a person
  overlap: float = 0.5  # largest intersection over union of two persons
  label: int = 0  # of persons
  height: int = 0  # of the smallest person, pixels of the photograph


class Detector:
  """A detector of persons that a user provides.

  Attributes:
    name: path of the ONNX file.
    settings: as given.
  """

  def __init__(self, path: Path, settings: Settings | None = None):
    """Opens an ONNX file.

    Raises:
      ConfigError: without onnxruntime, or for an input of another form.
      DataError: for a file that is missing or is no network.
    """
    runtime = plugins.load_extra(
      'onnxruntime', '--detect', plugins.install_command('detect')
    )
    self.settings, self.name = settings or Settings(), str(path)
    if not path.is_file():
      raise errors.DataError('no such file', str(path), 'give an ONNX file')
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    try:
      self._session: Any = runtime.InferenceSession(
        str(path), options, providers=['CPUExecutionProvider']
      )
    # The exceptions of ONNX Runtime have no public base class.
    except Exception as error:
      raise errors.DataError(
        f'cannot be read: {_first_line(error)}', str(path), 'give an ONNX file'
      ) from error
    self._input_name, self._height, self._width = self._input()

  def _input(self) -> tuple[str, int, int]:
    inputs = self._session.get_inputs()
    shape = inputs[0].shape if inputs else []
    if (
      len(inputs) != 1
      or inputs[0].type != 'tensor(float)'
      or len(shape) != 4
      or shape[1] != 3
      # A free axis has a name or None.
      or (isinstance(shape[0], int) and shape[0] != 1)
    ):
      given = ', '.join(f'{one.name} {one.type}{one.shape}' for one in inputs)
      raise errors.ConfigError(
        f'the detector has the inputs {given or "none"}',
        self.name,
        'give one with a single input, float32 [1, 3, height, width]',
      )
    height, width = (
      side if isinstance(side, int) else SIDE for side in shape[2:]
    )
    return inputs[0].name, height, width

  def find(self, image: Image.Image) -> list[Box]:
    """Finds the persons in an RGB image, the best first.

    Raises:
      ConfigError: for outputs of another form, or without the label.
      DataError: when the detector fails.
    """
    pixels, scale = letterbox(image, self._height, self._width)
    pixels *= self.settings.largest / 255
    try:
      outputs = self._session.run(None, {self._input_name: pixels})
    except Exception as error:
      raise errors.DataError(
        f'the detector fails: {_first_line(error)}',
        self.name,
        'check it with onnxruntime',
      ) from error
    boxes, scores = candidates(
      [np.asarray(one) for one in outputs], self.settings, self.name
    )
    return within(boxes / scale, scores, image, self.settings.height)


def letterbox(
  image: Image.Image, height: int, width: int
) -> tuple[np.ndarray, float]:
  """Fits an RGB image into an input.

  Returns:
    (float32 `[1, 3, height, width]`, values 0 to 255, and the factor from
    pixels of the image to those of the input).
  """
  scale = min(height / image.height, width / image.width)
  size = (
    max(1, round(image.width * scale)),
    max(1, round(image.height * scale)),
  )
  small = np.asarray(image.resize(size, Image.Resampling.BILINEAR), np.float32)
  found = np.full((1, 3, height, width), GREY, np.float32)
  found[0, :, : size[1], : size[0]] = small.transpose(2, 0, 1)
  return found, scale


def candidates(
  outputs: Sequence[np.ndarray], settings: Settings, where: str
) -> Candidates:
  """Boxes of persons in pixels of the input, the best first.

  Raises:
    ConfigError: for outputs of another form, or without the label.
  """
  form = settings.form
  if form == 'auto':
    form = form_of(outputs, where)
  if form == 'boxes':
    boxes, scores, labels = _listed(outputs, where)
  else:
    boxes, scores, labels = _anchors(outputs, form, settings.label, where)
  chosen = (labels == settings.label) & (scores >= settings.score)
  boxes, scores = boxes[chosen], scores[chosen]
  order = np.argsort(-scores, kind='stable')
  boxes, scores = boxes[order], scores[order]
  if form != 'boxes':
    kept = suppress(boxes, settings.overlap)
    boxes, scores = boxes[kept], scores[kept]
  return boxes, scores


def form_of(outputs: Sequence[np.ndarray], where: str) -> str:
  """The form of outputs, one of `FORMS` but 'auto'.

  Raises:
    ConfigError: for outputs of none of them.
  """
  if _parts(outputs):
    return 'boxes'
  shape = outputs[0].shape if outputs else ()
  if len(shape) == 3 and shape[0] == 1:
    # A network has more anchors than numbers of an anchor.
    if 5 <= shape[1] < shape[2]:
      return 'yolo8'
    if 6 <= shape[2] < shape[1]:
      return 'yolo5'
  raise _unknown(outputs, where)


def _parts(outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
  """Boxes, scores and labels of the form 'boxes', [] for another form."""
  for boxes in outputs:
    if boxes.ndim < 2 or boxes.shape[-1] != 4:
      continue
    same = [one for one in outputs if one.shape == boxes.shape[:-1]]
    scores = [one for one in same if one.dtype.kind == 'f']
    labels = [one for one in same if one.dtype.kind in 'iu']
    if len(scores) == 1 and len(labels) == 1:
      return [boxes.reshape(-1, 4), scores[0].ravel(), labels[0].ravel()]
  return []


def _listed(
  outputs: Sequence[np.ndarray], where: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  found = _parts(outputs)
  if not found:
    raise _unknown(outputs, where)
  return found[0].astype(np.float64), found[1], found[2]


def _anchors(
  outputs: Sequence[np.ndarray], form: str, label: int, where: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Boxes, scores and labels of anchors; the label of each is its best one."""
  before = 4 if form == 'yolo8' else 5
  if not outputs or outputs[0].ndim != 3 or len(outputs[0]) != 1:
    raise _unknown(outputs, where)
  rows: np.ndarray = outputs[0][0].T if form == 'yolo8' else outputs[0][0]
  classes = rows.shape[1] - before
  if classes < 1:
    raise _unknown(outputs, where)
  if label >= classes:
    raise errors.ConfigError(
      f'no class {label} among {classes}', where, 'give another --detect_class'
    )
  rows = rows.astype(np.float64)
  centre, half, scores = rows[:, :2], rows[:, 2:4] / 2, rows[:, before:]
  if form == 'yolo5':
    scores = scores * rows[:, 4:5]
  boxes = np.concatenate([centre - half, centre + half], axis=1)
  return boxes, scores.max(1), scores.argmax(1)


def _unknown(outputs: Sequence[np.ndarray], where: str) -> errors.ConfigError:
  given = ', '.join(f'{one.dtype} {list(one.shape)}' for one in outputs)
  return errors.ConfigError(
    f'the detector has outputs of an unknown form, {given or "none"}',
    where,
    EXPECTED,
  )


def _first_line(error: Exception) -> str:
  return errors.printable(str(error).strip().partition('\n')[0])
