"""DukeMTMC-reID (Ristani et al. 2016, Zheng et al., ICCV 2017).

The creators have withdrawn the data set. This reader is for existing copies;
the package does not link to any. An image has a name such as
`0001_c2_f0046182.jpg`: person, camera, frame.
"""

from pathlib import Path

from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import large

PATTERN = r'(\d+)_c(\d+)_f\d+\.[a-z]+'


def read(root: Path) -> list[Record]:
  """Reads the data set."""
  cameras = range(1, 9)
  return [
    *layout.from_names(root, 'bounding_box_train', PATTERN, 'train', cameras),
    *layout.from_names(root, 'query', PATTERN, 'query', cameras),
    *layout.from_names(root, 'bounding_box_test', PATTERN, 'gallery', cameras),
  ]


def expected() -> dict[str, Count]:
  """Returns the published counts."""
  return {
    'train': Count(16522, 702, 8),
    'query': Count(2228, 702, 8),
    'gallery': Count(17661, 1110, 8),
  }


DATASET = Dataset(
  name='dukemtmc',
  title='DukeMTMC-reID',
  read=read,
  expected=expected,
  protocol='market',
  page='withdrawn by its creators',
  miniature=large.write_dukemtmc,
  folders=('DukeMTMC-reID',),
  note='withdrawn by its creators: prefer another data set for new work',
)
