"""QMUL GRID (Loy et al., CVPR 2009): 250 pairs, 775 distractors, 8 cameras.

A name such as `probe/0001_1_25004_107_32_106_221.jpeg` (or `gallery/...`)
begins with person and camera; person 0 is in every gallery.
`features_and_partitions.mat` holds ten published halves of the persons.

The journal version of FedReIDBench (section 5.4, table 5) does not train on
this data set and tests on all 250 persons, one view against the other:
`split=views`.
"""

from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import small

PATTERN = r'(\d+)_(\d+)_.*\.jpe?g'
PARTITIONS = 'features_and_partitions.mat'


def read(root: Path, split: str, trial: int) -> list[Record]:
  """Reads the data set; `split` is 'images', 'official' or 'views'."""
  sides = {
    side: layout.from_names(root, folder, PATTERN, 'images', range(1, 9))
    for side, folder in (('query', 'probe'), ('gallery', 'gallery'))
  }
  if split == 'images':
    return [
      r if r.person else r._replace(split='distractor')
      for records in sides.values()
      for r in records
    ]
  # With 'views' the paper does not mention whether the distractors are ranked.
  # Here they are, as in all other tests of this data set.
  train = _train_people(root, trial) if split == 'official' else ()
  return [
    r._replace(split='train' if r.person in train else side)
    for side, records in sides.items()
    for r in records
  ]


def _train_people(root: Path, trial: int) -> set[int]:
  cells = layout.matlab(root, PARTITIONS, 'trainIdxAll').ravel()
  try:
    # A struct of index tables; the third is of persons.
    return {int(person) for person in cells[trial][0, 0][2].ravel()}
  except (IndexError, TypeError, ValueError) as error:
    raise errors.DataError(
      f'no partition {trial}', str(root / PARTITIONS), layout.HELP
    ) from error


def expected(split: str, trial: int) -> dict[str, Count]:
  """Returns the published counts."""
  del trial
  if split == 'images':
    return {'images': Count(500, 250, None), 'distractor': Count(775, 1, None)}
  if split == 'views':
    return {'query': Count(250, 250, None), 'gallery': Count(1025, 251, None)}
  return {
    'train': Count(250, 125, None),
    'query': Count(125, 125, None),
    'gallery': Count(900, 126, None),
  }


DATASET = Dataset(
  name='grid',
  title='QMUL GRID',
  read=read,
  expected=expected,
  protocol='single_shot',
  page='the QMUL underGround Re-IDentification page of C. C. Loy',
  miniature=small.write_grid,
  folders=('underground_reid', 'GRID'),
  options={'split': ('images', 'official', 'views'), 'trial': tuple(range(10))},
  note='person 0 stands for 775 distractors in every gallery',
)
