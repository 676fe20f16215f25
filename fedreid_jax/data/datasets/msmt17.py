"""MSMT17 (Wei et al., CVPR 2018), versions 1 and 2.

`list_train.txt`, `list_val.txt`, `list_query.txt` and `list_gallery.txt` list
images such as `0000/0000_000_01_0303morning_0015_0.jpg`; the third field is the
camera. Version 2 has blurred faces and folders with other names.
"""

from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data.datasets import layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import large

FOLDERS = (('train', 'test'), ('mask_train_v2', 'mask_test_v2'))
PATTERN = r'(\d+)_\d+_(\d+)_.*\.[a-z]+'


def read(root: Path, val: str) -> list[Record]:
  """Reads the data set.

  The validation list is a split ('val'), part of 'train', or unused ('drop').
  """
  for train, test in FOLDERS:
    if (root / train).is_dir() and (root / test).is_dir():
      break
  else:
    raise errors.DataError(
      'neither train and test nor mask_train_v2 and mask_test_v2',
      str(root),
      layout.HELP,
    )
  lists = {'train': train, 'query': test, 'gallery': test}
  if val != 'drop':
    lists['val'] = train
  records = []
  for split, folder in lists.items():
    for name, *_ in layout.lines(root, f'list_{split}.txt'):
      person, camera = layout.parse(PATTERN, name, root)
      # Training and test persons are both numbered from 0 and are not the same.
      person += 10000 if folder == test else 0
      if camera not in range(1, 16):
        raise errors.DataError(
          f'camera {camera} in {name!r}', str(root), 'cameras are 1 to 15'
        )
      split = 'train' if split == 'val' and val == 'train' else split
      records.append(Record(f'{folder}/{name}', person, camera, 0, split))
  layout.require(root, [record.path for record in records])
  return records


def expected(val: str) -> dict[str, Count]:
  """Returns the published counts."""
  counts = {
    'train': Count(32621 if val == 'train' else 30248, 1041, 15),
    'query': Count(11659, 3060, 15),
    'gallery': Count(82161, 3060, 15),
  }
  return counts | ({'val': Count(2373)} if val == 'val' else {})


DATASET = Dataset(
  name='msmt17',
  title='MSMT17',
  read=read,
  expected=expected,
  protocol='market',
  page='the MSMT17 page of Peking University (release agreement by e-mail)',
  miniature=large.write_msmt17,
  folders=('MSMT17_V1', 'MSMT17_V2', 'MSMT17'),
  options={'val': ('train', 'val', 'drop')},
  note='32,621 training images are the lists train and val, 30,248 train only',
)
