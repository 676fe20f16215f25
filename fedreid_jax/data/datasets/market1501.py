"""Market-1501 (Zheng et al., ICCV 2015).

`bounding_box_train`, `query` and `bounding_box_test` hold images with names
such as `0002_c1s1_000451_03.jpg`: person, camera, sequence, frame, box. Person
-1 is junk, which is never ranked; person 0 is a distractor, which matches no
query.
"""

from pathlib import Path

from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import large

PATTERN = r'(-1|\d+)_c(\d+)s\d+_\d+_\d+\.[a-z]+'


def read(root: Path, junk: bool) -> list[Record]:
  """Reads the data set; `junk` keeps gallery images of person -1."""
  cameras = range(1, 7)
  records = [
    *layout.from_names(root, 'bounding_box_train', PATTERN, 'train', cameras),
    *layout.from_names(root, 'query', PATTERN, 'query', cameras),
    *layout.from_names(root, 'bounding_box_test', PATTERN, 'gallery', cameras),
  ]
  return [r for r in records if junk or r.person != -1]


def expected(junk: bool) -> dict[str, Count]:
  """Returns the published counts."""
  return {
    'train': Count(12936, 751, 6),
    'query': Count(3368, 750, 6),
    'gallery': Count(19732, 752, 6) if junk else Count(15913, 751, 6),
  }


DATASET = Dataset(
  name='market1501',
  title='Market-1501',
  read=read,
  expected=expected,
  protocol='market',
  page="the project page of L. Zheng (Tsinghua University), 'Person Re-id'",
  miniature=large.write_market1501,
  folders=('Market-1501-v15.09.15', 'Market-1501'),
  options={'junk': (False, True)},
  note='tables with 19,732 gallery images include 3,819 of junk',
)
