"""CUHK02 (Li and Wang, CVPR 2013): five pairs of cameras, 1,816 persons.

`Dataset/P1/cam1/001_....png` is pair, camera, person. With `split=pairs`, pairs
1 to 4 are for training and pair 5 is for testing (camera 1 is query, camera 2
gallery). With `split=public`, all images are a public set without labels.
"""

from pathlib import Path

from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import large

PAIRS = range(1, 6)
TEST_PAIR = 5


def read(root: Path, split: str) -> list[Record]:
  """Reads the data set; `split` is 'pairs' or 'public'."""
  base = 'Dataset/' if (root / 'Dataset').is_dir() else ''
  records = []
  for pair in PAIRS:
    for view, side in ((1, 'query'), (2, 'gallery')):
      part = side if pair == TEST_PAIR else 'train'
      for name in layout.images(root, f'{base}P{pair}/cam{view}'):
        (person,) = layout.parse(r'(\d+)_.*\.png', name, root)
        # Persons are numbered anew in every pair.
        person += 10000 * pair
        camera = 2 * (pair - 1) + view
        records.append(
          Record(name, person, camera, 0, part if split == 'pairs' else split)
        )
  return records


def expected(split: str) -> dict[str, Count]:
  """Returns the published counts."""
  if split == 'public':
    return {'public': Count(7264, 1816, 10)}
  return {
    'train': Count(6308, 1577, 8),
    'query': Count(478, 239, 1),
    'gallery': Count(478, 239, 1),
  }


DATASET = Dataset(
  name='cuhk02',
  title='CUHK02',
  read=read,
  expected=expected,
  protocol='market',
  page="the 'CUHK Person Re-identification Datasets' page of the Chinese "
  'University of Hong Kong',
  miniature=large.write_cuhk02,
  folders=('CUHK02', 'cuhk02'),
  options={'split': ('pairs', 'public')},
  note='contains CUHK01 as pair 1: never train on one and test on the other',
)
