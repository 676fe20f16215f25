"""RegDB (Nguyen et al., Sensors 2017): one visible and one thermal camera.

`idx/train_visible_1.txt` and similar files list the images of ten trials in
lines such as `Visible/8/male_front_v_05344_1.bmp 0`.
"""

from pathlib import Path
from typing import Literal, get_args

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import (
  INFRARED,
  VISIBLE,
  Count,
  Dataset,
  Record,
)
from fedreid_jax.data.fixtures import infrared

Direction = Literal['infrared-visible', 'visible-infrared']
DIRECTIONS = get_args(Direction)


def read(root: Path, trial: int, direction: str) -> list[Record]:
  """Reads one of ten trials; `direction` is QUERY-GALLERY, two modalities."""
  query = direction.partition('-')[0]
  sides = {'visible': VISIBLE, 'thermal': INFRARED}
  records = []
  for part in ('train', 'test'):
    for side, modality in sides.items():
      split = part
      if part == 'test':
        is_query = query == ('infrared' if modality else 'visible')
        split = 'query' if is_query else 'gallery'
      for name, *_ in layout.lines(root, f'idx/{part}_{side}_{trial}.txt'):
        # The label after the path is numbered anew in every list; the folder is
        # the person.
        person = _person(root, name)
        records.append(Record(name, person, modality + 1, modality, split))
  layout.require(root, [record.path for record in records])
  return records


def _person(root: Path, name: str) -> int:
  parts = name.split('/')
  if len(parts) != 3 or not parts[1].isdigit():
    raise errors.DataError(
      f'{name!r} is not modality/person/image', str(root / 'idx'), layout.HELP
    )
  return int(parts[1])


def expected(trial: int, direction: str) -> dict[str, Count]:
  """Returns the published counts, the same for every trial."""
  del trial, direction
  return {
    'train': Count(4120, 206, 2),
    'query': Count(2060, 206, 1),
    'gallery': Count(2060, 206, 1),
  }


DATASET = Dataset(
  name='regdb',
  title='RegDB',
  read=read,
  expected=expected,
  protocol='regdb',
  page='the Dongguk Body-based Person Recognition Database page of Dongguk '
  'University',
  miniature=infrared.write_regdb,
  folders=('RegDB',),
  options={'trial': tuple(range(1, 11)), 'direction': DIRECTIONS},
  note='train one model for every trial: another trial has its test persons',
)
