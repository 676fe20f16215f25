"""CAVIAR4REID (Cheng et al., BMVC 2011): 72 persons, two cameras.

`0001001.jpg` is person and image. Of 72 persons, 50 have ten images of each
camera, one camera after the other, and 22 have ten images of one.
"""

from pathlib import Path

from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record

PER_CAMERA = 10


def read(root: Path) -> list[Record]:
  """Reads the data set."""
  records = []
  for name in layout.images(root):
    person, image = layout.parse(r'(\d{4})(\d{3})\.jpg', name, root)
    camera = 1 if image <= PER_CAMERA else 2
    records.append(Record(name, person, camera, 0, 'images'))
  return records


def expected() -> dict[str, Count]:
  """Returns the published counts."""
  return {'images': Count(1220, 72, 2)}


DATASET = Dataset(
  name='caviar4reid',
  title='CAVIAR4REID',
  read=read,
  expected=expected,
  protocol='single_shot',
  page='the CAVIAR4REID page of L. Bazzani (University of Verona)',
  folders=('CAVIAR4REID', 'CAVIARa'),
  note='22 of 72 persons are seen by one camera only',
)
