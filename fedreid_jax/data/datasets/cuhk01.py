"""CUHK01 (Li et al., ACCV 2012): 971 persons, two cameras, two images in each.

A name such as `campus/0001001.png` is person and image; images 1 and 2 are of
camera 1, images 3 and 4 of camera 2.
"""

from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data.datasets import halves, layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import small


def read(root: Path, split: str, trial: int) -> list[Record]:
  """Reads the data set."""
  records = []
  for name in layout.images(root):
    person, image = layout.parse(r'(\d{4})(\d{3})\.png', name, root)
    if image not in range(1, 5):
      raise errors.DataError(
        f'image {image} in {name!r}', str(root), 'a person has images 1 to 4'
      )
    records.append(Record(name, person, (image + 1) // 2, 0, 'images'))
  if split == 'images':
    return records
  return halves.halve(records, halves.num_train(records, 971, 486), trial)


def expected(split: str, trial: int) -> dict[str, Count]:
  """Returns the published counts."""
  del trial
  if split == 'images':
    return {'images': Count(3884, 971, 2)}
  return {
    'train': Count(1940, 485, 2),
    'query': Count(972, 486, 1),
    'gallery': Count(972, 486, 1),
  }


DATASET = Dataset(
  name='cuhk01',
  title='CUHK01',
  read=read,
  expected=expected,
  protocol='single_shot',
  page="the 'CUHK Person Re-identification Datasets' page of the Chinese "
  'University of Hong Kong',
  miniature=small.write_cuhk01,
  folders=('campus', 'CUHK01'),
  options=halves.OPTIONS,
)
