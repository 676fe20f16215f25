"""A miniature of any data set, by its user's name."""

import os
from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.miniatures import containers, infrared, large, small
from fedreid_jax.data.miniatures.photos import Photos

FEWEST = 6  # persons: five pairs of cameras, two halves of two and a stranger
CAMERAS = 15  # of MSMT17, which has the most
WRITERS = {
  'market1501': large.write_market1501,
  'dukemtmc': large.write_dukemtmc,
  'msmt17': large.write_msmt17,
  'cuhk03-np': containers.write_cuhk03,
  'cuhk03': containers.write_cuhk03,
  'cuhk01': small.write_cuhk01,
  'cuhk02': large.write_cuhk02,
  'prid2011': small.write_prid2011,
  'viper': small.write_viper,
  '3dpes': small.write_3dpes,
  'qmul-ilids': small.write_ilids,
  'ilids-vid': small.write_ilids_vid,
  'caviar4reid': small.write_caviar,
  'grid': small.write_grid,
  'cuhk-sysu': large.write_cuhk_sysu,
  'sysu-mm01': infrared.write_sysu_mm01,
  'regdb': infrared.write_regdb,
  'llcm': infrared.write_llcm,
  'cifar10': containers.write_cifar10,
  'csv': large.write_csv,
}


def check_empty(root: str | os.PathLike) -> Path:
  """Returns a folder that may be written to.

  Raises:
    ResourceError: when it has something in it, or is a file.
  """
  path = Path(root).expanduser()
  if path.exists() and (not path.is_dir() or any(path.iterdir())):
    raise errors.ResourceError(
      'not empty', str(path), 'give a folder that is not there yet'
    )
  return path


def write(name: str, root: str | os.PathLike, photos: Photos) -> None:
  """Writes a data set of rendered persons, in the official layout.

  Args:
    name: of the data set.
    root: folder that is empty or not there yet.
    photos: at least `FEWEST` persons before `CAMERAS` cameras, twice each.

  Raises:
    ConfigError: for an unknown data set, or too few photos.
    ResourceError: when the folder has something in it.
  """
  registry.get(name)
  persons, cameras, shots = photos.visible.shape[:3]
  if persons < FEWEST or cameras < CAMERAS or shots < 2:
    raise errors.ConfigError(
      f'{persons} persons, {cameras} cameras, {shots} shots',
      'miniature',
      f'render at least {FEWEST}, {CAMERAS} and 2',
    )
  path = check_empty(root)
  path.mkdir(parents=True, exist_ok=True)
  WRITERS[name](path, photos)
