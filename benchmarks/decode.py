"""Speed of decoding and opening images: `python -m benchmarks.decode`.

JPEG files of 128x64 pixels, the size of Market-1501, are rendered, decoded to
one array, and opened again.
"""

import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from absl import app, flags
from PIL import Image
from rich import console, table

from fedreid_jax.data import cache
from fedreid_jax.data.decoder import Decoder
from fedreid_jax.data.synthetic import photographs, versions

_IMAGES = flags.DEFINE_integer('images', 12936, 'Number of images.', 1)
_DIFFERENT = 256  # number of rendered images, which the files repeat


def write(folder: Path, num_images: int) -> list[str]:
  """Writes JPEG files of 128x64 pixels and returns their names."""
  sample = photographs.generate(
    0, 16, 4, 4, height=128, width=64, source=versions.FIRST
  )
  names = [f'{k:06d}.jpg' for k in range(num_images)]
  for name, pixels in zip(names, sample.images, strict=False):
    Image.fromarray(pixels).save(folder / name, quality=90)
  for k in range(min(_DIFFERENT, num_images), num_images):
    shutil.copyfile(folder / names[k % _DIFFERENT], folder / names[k])
  return names


def main(_: list[str]) -> None:
  """Prints one table."""
  shown = table.Table(
    'decoded to',
    'images/s',
    'images / CPU second',
    'open, s',
    'read through, s',
  )
  with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    names = write(folder, _IMAGES.value)
    for height, width in ((128, 64), (256, 128)):
      decoder = Decoder(height, width)
      target = folder / f'{height}x{width}'
      start, busy = time.perf_counter(), time.process_time()
      cache.ensure(
        target,
        names,
        lambda k: (folder / names[k]).read_bytes(),
        decoder,
        scratch,
      )
      decoded, busy = time.perf_counter(), time.process_time() - busy
      images = cache.ensure(target, names, lambda k: b'', decoder, scratch)[0]
      opened = time.perf_counter()
      int(np.add.reduce(images, axis=None, dtype=np.int64))
      read = time.perf_counter()
      shown.add_row(
        f'{height}x{width}',
        f'{len(names) / (decoded - start):,.0f}',
        f'{len(names) / busy:,.0f}',
        f'{opened - decoded:.3f}',
        f'{read - opened:.2f}',
      )
  console.Console().print(shown)


if __name__ == '__main__':
  app.run(main)
