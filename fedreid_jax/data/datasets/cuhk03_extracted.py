"""CUHK03 as torchreid extracts it from the release: PNG files and JSON lists.

`images_detected/1_001_1_01.png` is pair, person, camera, image;
`splits_classic_detected.json` holds 20 splits, `splits_new_detected.json` one,
each with lists `train`, `query` and `gallery` of [path, person, camera].
"""

import json
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import Record

BOXES = ('detected', 'labeled')
NAME = r'(\d+)_(\d+)_(\d+)_(\d+)\.png'  # pair, person, camera, image


def is_here(root: Path, boxes: str) -> bool:
  """Returns whether a folder has extracted images of a kind of box."""
  return (root / f'images_{boxes}').is_dir()


def read(root: Path, boxes: str, protocol: str, trial: int) -> list[Record]:
  """Reads one split.

  Args:
    root: folder of the data set.
    boxes: one of `BOXES`.
    protocol: 'classic' or 'new'.
    trial: number of the split.

  Raises:
    DataError: when the list is missing or damaged or names a missing file.
  """
  listed = f'splits_{protocol}_{boxes}.json'
  split = _split(root, listed, trial)
  found: dict[str, str] = {}
  for side in ('train', 'query', 'gallery'):
    for name in split[side]:
      before = found.setdefault(name, side)
      # In the classic protocol every gallery image is a query, too.
      if before != side:
        found[name] = f'{before}+{side}'
  records = []
  for name, side in found.items():
    pair, person, camera, _ = layout.parse(NAME, name, root)
    path = f'images_{boxes}/{name}'
    records.append(Record(path, 1000 * pair + person, camera, 0, side))
    if side not in ('train', 'query', 'gallery', 'query+gallery'):
      raise errors.DataError(
        f'{name} is in {side}', str(root / listed), layout.HELP
      )
  layout.require(root, [record.path for record in records])
  return records


def _split(root: Path, listed: str, trial: int) -> dict[str, list[str]]:
  """Returns the file names of 'train', 'query' and 'gallery'."""
  try:
    # The paths are valid only on the machine that wrote the list, and persons
    # are renumbered in every list, so both are read from the file name.
    splits: Any = json.loads((root / listed).read_bytes())
    return {
      side: [
        str(path).replace('\\', '/').rpartition('/')[2]
        for path, _, _ in splits[trial][side]
      ]
      for side in ('train', 'query', 'gallery')
    }
  except FileNotFoundError:
    raise errors.DataError(
      f'no file {listed}', str(root), layout.HELP
    ) from None
  except (ValueError, TypeError, LookupError) as error:
    raise errors.DataError(
      f'no list of splits: {error}', str(root / listed), layout.HELP
    ) from error
