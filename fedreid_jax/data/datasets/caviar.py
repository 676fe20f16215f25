"""CAVIAR4REID (Cheng et al., BMVC 2011): 72 persons, two cameras.

A name such as `0001001.jpg` is person and image. Of 72 persons, 50 have ten
images of each camera, one camera after the other, and 22 have ten of one.

The journal version of FedReIDBench (section 5.4, table 5) draws 36 persons seen
in both views and ranks all images of one view for all images of the other. This
is `split=views`; the images of all other persons are 'train'.
"""

from pathlib import Path

import numpy as np

from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import small

PER_CAMERA = 10
TESTED = 36  # persons of `split=views`; fewer if fewer have both views
SIDES = {1: 'query', 2: 'gallery'}


def read(root: Path, split: str, trial: int) -> list[Record]:
  """Reads the data set; `split` is 'images' or 'views', drawn by `trial`."""
  records = []
  for name in layout.images(root):
    person, image = layout.parse(r'(\d{4})(\d{3})\.jpg', name, root)
    camera = 1 if image <= PER_CAMERA else 2
    records.append(Record(name, person, camera, 0, 'images'))
  if split == 'images':
    return records
  first, second = (
    {r.person for r in records if r.camera == camera} for camera in SIDES
  )
  # The paper does not print the seed of its draw.
  rng = np.random.default_rng([trial, 0])
  tested = set(rng.permutation(sorted(first & second))[:TESTED].tolist())
  return [
    r._replace(split=SIDES[r.camera] if r.person in tested else 'train')
    for r in records
  ]


def expected(split: str, trial: int) -> dict[str, Count]:
  """Returns the published counts."""
  del trial
  if split == 'images':
    return {'images': Count(1220, 72, 2)}
  return {
    'train': Count(500, 36, 2),
    'query': Count(360, 36, 1),
    'gallery': Count(360, 36, 1),
  }


DATASET = Dataset(
  name='caviar4reid',
  title='CAVIAR4REID',
  read=read,
  expected=expected,
  protocol='single_shot',
  page='the CAVIAR4REID page of L. Bazzani (University of Verona)',
  miniature=small.write_caviar,
  folders=('CAVIAR4REID', 'CAVIARa'),
  options={'split': ('images', 'views'), 'trial': tuple(range(10))},
  note='22 of 72 persons are seen by one camera only',
)
