"""Speed of decoding and opening images: `python -m benchmarks.decode`.

JPEG files of 128x64 pixels, the size of Market-1501, are rendered, decoded to
one array, and opened again.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from absl import app, flags
from rich import console, table

from benchmarks import made_up
from fedreid_jax.data import cache
from fedreid_jax.data.decoder import Decoder

_IMAGES = flags.DEFINE_integer('images', 12936, 'Number of images.', 1)


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
    names = made_up.files(folder, _IMAGES.value)
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
