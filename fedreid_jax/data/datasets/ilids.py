"""QMUL i-LIDS (Zheng et al., BMVC 2009): 119 persons, 476 images, no cameras.

A name such as `Persons/0001001.jpg` is person and image. The federated
benchmark calls this data set iLIDS-VID, but its 119 persons are the persons of
this data set and not of the videos.
"""

from pathlib import Path

from fedreid_jax.data.datasets import halves, layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import small


def read(root: Path, split: str, trial: int) -> list[Record]:
  """Reads the data set."""
  records = []
  for name in layout.images(root, 'Persons'):
    person, image = layout.parse(r'(\d{4})(\d{3})\.jpg', name, root)
    # Each image counts as a view. With one camera for all, the camera rule
    # would exclude every match.
    records.append(Record(name, person, image, 0, 'images'))
  if split == 'images':
    return records
  num_train = halves.num_train(records, 119, 60)
  return halves.halve(halves.two_views(records, trial), num_train, trial)


def expected(split: str, trial: int) -> dict[str, Count]:
  """Returns the published counts."""
  del trial
  if split == 'images':
    return {'images': Count(476, 119)}
  return {
    'train': Count(None, 59, 2),
    'query': Count(None, 60, 1),
    'gallery': Count(None, 60, 1),
  }


DATASET = Dataset(
  name='qmul-ilids',
  title='QMUL i-LIDS',
  read=read,
  expected=expected,
  protocol='single_shot',
  page='the person re-identification page of W.-S. Zheng and S. Gong (Queen '
  'Mary University of London)',
  miniature=small.write_ilids,
  folders=('i-LIDS_Pedestrian', 'QMUL-iLIDS'),
  options=halves.OPTIONS,
  note="the papers' 'iLIDS-VID' with 119 persons is this set",
)
