"""LLCM (Zhang and Wang, CVPR 2023): nine places, in visible and near infrared.

`idx/train_vis.txt` and `train_nir.txt` list training images such as
`vis/0001/0001_c01_s197010_f7846_vis.jpg`. Test images are in
`test_vis/cam1/0004/` and `test_nir/...`; `idx/test_id.txt` lists their persons.
The camera is the place. Both modalities use the same numbers for the places;
no infrared image is of place 3.
"""

from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout, regdb
from fedreid_jax.data.datasets.records import (
  INFRARED,
  VISIBLE,
  Count,
  Dataset,
  Record,
)
from fedreid_jax.data.fixtures import infrared

SIDES = {'vis': VISIBLE, 'nir': INFRARED}
PATTERN = r'(\d+)_c(\d+)_.*\.[a-z]+'


def read(root: Path, direction: str) -> list[Record]:
  """Reads the data set; `direction` is QUERY-GALLERY, two modalities."""
  query = direction.partition('-')[0]
  test = set(layout.identities(root, 'idx/test_id.txt'))
  records = []
  for side, modality in SIDES.items():
    for name, *_ in layout.lines(root, f'idx/train_{side}.txt'):
      person, camera = layout.parse(PATTERN, name, root)
      records.append(Record(name, person, camera, modality, 'train'))
  layout.require(root, [record.path for record in records])
  for side, modality in SIDES.items():
    is_query = query == ('infrared' if modality else 'visible')
    split = 'query' if is_query else 'gallery'
    for name in layout.images(root, f'test_{side}'):
      person, camera = _place(root, name)
      if person in test:
        records.append(Record(name, person, camera, modality, split))
  return records


def _place(root: Path, name: str) -> tuple[int, int]:
  """Reads person and camera from the folders, as the published code does."""
  parts = name.split('/')
  if len(parts) != 4 or not parts[2].isdigit():
    raise errors.DataError(
      f'{name!r} is not side/camera/person/image', str(root), layout.HELP
    )
  return int(parts[2]), layout.parse(r'cam(\d)', parts[1], root)[0]


def expected(direction: str) -> dict[str, Count]:
  """Returns the published counts."""
  sides = [Count(7166, 351, 8), Count(8680, 351, 9)]
  if direction.startswith('visible'):
    sides.reverse()
  query, gallery = sides
  return {'train': Count(30921, 713, 9), 'query': query, 'gallery': gallery}


DATASET = Dataset(
  name='llcm',
  title='LLCM',
  read=read,
  expected=expected,
  protocol='llcm',
  page='the LLCM page of Y. Zhang and H. Wang, by agreement',
  miniature=infrared.write_llcm,
  folders=('LLCM',),
  options={'direction': regdb.DIRECTIONS},
  note='its paper gives 13,909 test images, its lists hold 15,846',
)
