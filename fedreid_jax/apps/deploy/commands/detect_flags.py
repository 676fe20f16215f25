"""Flags of `embed` for photographs of which persons are cut."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from fedreid_jax import errors

if TYPE_CHECKING:
  from fedreid_jax.apps.deploy.detector import Detector
  from fedreid_jax.apps.deploy.vectors import Folder

_DETECT = flags.DEFINE_string(
  'detect',
  None,
  'ONNX file of a detector: embed the persons in photographs.',
)
_CROPS = flags.DEFINE_string(
  'crops',
  None,
  'detect: folder for the images of persons (default: that of --out with '
  '-crops).',
)
_FORM = flags.DEFINE_string(
  'detect_form',
  'auto',
  'detect: form of the outputs: boxes (boxes, scores and labels), yolo8 '
  '([1, 4 + classes, n]), yolo5 ([1, n, 5 + classes]), or auto.',
)
_VALUES = flags.DEFINE_enum(
  'detect_values', '1', ['1', '255'], 'detect: value of white in the input.'
)
_SCORE = flags.DEFINE_float(
  'detect_score', 0.5, 'detect: smallest score of a person.', 0, 1
)
_OVERLAP = flags.DEFINE_float(
  'detect_overlap',
  0.5,
  'detect: largest intersection over union of two persons, for outputs without '
  'suppression.',
  0,
  1,
)
_LABEL = flags.DEFINE_integer(
  'detect_class',
  0,
  'detect: class of persons; 0 in COCO, 1 in detectors of torchvision.',
  0,
)

SHOWN = 20  # names of photographs in a note


def opened() -> 'Detector | None':
  """Opens the detector that the flags choose, None without one.

  Raises:
    ConfigError: without onnxruntime, or for another form of input.
    DataError: for a file that is missing or is no network.
  """
  if _DETECT.value is None:
    for flag in (_CROPS, _FORM, _VALUES, _SCORE, _OVERLAP, _LABEL):
      if flag.present:
        raise errors.ConfigError(
          'no detector', f'--{flag.name}', 'give --detect=FILE.onnx'
        )
    return None
  from fedreid_jax.apps.deploy import detector

  if _FORM.value not in detector.FORMS:
    raise errors.ConfigError(
      f'unknown form {_FORM.value!r}',
      '--detect_form',
      errors.one_of(_FORM.value, detector.FORMS),
    )
  settings = detector.Settings(
    form=_FORM.value,
    largest=float(_VALUES.value),
    score=_SCORE.value,
    overlap=_OVERLAP.value,
    label=_LABEL.value,
  )
  return detector.Detector(Path(_DETECT.value).expanduser(), settings)


def crops_of(out: Path) -> Path:
  """The folder of crops; an error of `crops.check_out` if it cannot be used."""
  from fedreid_jax.apps.deploy import crops

  given = _CROPS.value
  path = Path(given).expanduser() if given else None
  path = path or out.with_name(f'{out.stem}-crops')
  crops.check_out(path)
  return path


def cut(
  detector: 'Detector',
  photographs: 'Folder',
  out: Path,
  max_pixels: int,
  skip: bool,
) -> tuple['Folder', dict[str, Any]]:
  """Cuts the persons of photographs, and prints how many there are.

  The result is the folder of crops, and values for JSON that describe it.
  """
  from fedreid_jax.apps.deploy import crops
  from fedreid_jax.apps.deploy.commands import embedding_flags

  number = errors.counted(len(photographs.names), 'photograph')
  with embedding_flags.progress_bar('detecting', len(photographs.names)) as on:
    found = crops.write(
      detector,
      photographs,
      out,
      max_pixels=max_pixels,
      skip=skip,
      advance=on,
    )
  persons = errors.counted(len(found.folder.names), 'person')
  print(f'{persons} in {number}, cut into {out}; boxes in {out / crops.BOXES}')
  if found.empty:
    names = ', '.join(found.empty[:SHOWN])
    names += ', ...' if len(found.empty) > SHOWN else ''
    line = (
      f'note: no person in {errors.counted(len(found.empty), "photograph")}'
    )
    print(errors.printable(f'{line}: {names}'), file=sys.stderr)
  described = {
    'photographs': str(photographs.root),
    'detector': str(detector.path),
    'without_person': found.empty,
    'settings': detector.settings._asdict(),
  }
  return found.folder, described
