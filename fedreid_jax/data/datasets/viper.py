"""VIPeR (Gray and Tao, ECCV 2008): 632 persons, one image in each of two views.

`cam_a/000_45.bmp` is person and angle. The notes and the folder of links for
MATLAB, which the archive also holds, are ignored.
"""

from pathlib import Path

from fedreid_jax.data.datasets import halves, layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import small


def read(root: Path, split: str, trial: int) -> list[Record]:
  """Reads the data set."""
  records = [
    Record(
      name, layout.parse(r'(\d+)_\d+\.bmp', name, root)[0], camera, 0, 'images'
    )
    for camera, folder in ((1, 'cam_a'), (2, 'cam_b'))
    for name in layout.images(root, folder)
  ]
  if split == 'images':
    return records
  return halves.halve(records, halves.num_train(records, 632, 316), trial)


def expected(split: str, trial: int) -> dict[str, Count]:
  """Returns the published counts."""
  del trial
  if split == 'images':
    return {'images': Count(1264, 632, 2)}
  return {
    'train': Count(632, 316, 2),
    'query': Count(316, 316, 1),
    'gallery': Count(316, 316, 1),
  }


DATASET = Dataset(
  name='viper',
  title='VIPeR',
  read=read,
  expected=expected,
  protocol='single_shot',
  page='the VIPeR page of D. Gray (University of California, Santa Cruz)',
  miniature=small.write_viper,
  folders=('VIPeR', 'VIPeR.v1.0'),
  options=halves.OPTIONS,
)
