"""Reading a folder of JPEG files for training, beside other loaders.

  python -m benchmarks.readers [--images=12936]
  python -m benchmarks.readers --crops=100000 --turns=3

The first command prints images per second from files of 128x64 pixels to
normalised batches of 32 images of 256x128, with FedReIDBench's augmentation
(mirroring, 10 pixels of padding and a crop) and random erasing. This package
decodes the files once and augments the array in every epoch; torchvision
(`ImageFolder` in a `DataLoader` with a process for each core) and Pillow (in
such processes as well) decode them in every epoch. torchvision is optional.

The second command trains FedPav with the convnet on crops of 64x32, whose files
are decoded to one array in a file. In turn, all images stay on the devices, or
those of some steps are copied while the steps before are computed. It prints
the share of a round with copies that it takes longer, as the time for which the
devices wait, and the images per second of copies without any computation.
"""

import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from PIL import Image

from benchmarks import made_up, show

_IMAGES = flags.DEFINE_integer('images', 12936, 'Number of files.', 1)
_CROPS = flags.DEFINE_integer('crops', 0, 'Train on so many crops instead.', 0)
_TURNS = flags.DEFINE_integer('turns', 3, 'Rounds of each kind.', 1)

HEIGHT, WIDTH, PAD, BATCH = 256, 128, 10, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ERASE, AREA, TRIES = 0.5, (0.02, 0.33), 10
CORES = os.cpu_count() or 1
CLIENTS, SMALL = 4, (64, 32)
SHARE = 0.1  # of the images of a device, that it may have at a time


def decoded(
  folder: Path, names: list[str], height: int, width: int
) -> np.ndarray:
  """Decodes the files to an array in a file, unless it is there."""
  from fedreid_jax.data import cache
  from fedreid_jax.data.decoder import Decoder

  def read(k: int) -> bytes:
    return (folder / names[k]).read_bytes()

  # Beside the folder of classes.
  target = folder.parents[1] / f'{height}x{width}'
  return cache.ensure(target, names, read, Decoder(height, width), 'here')[0]


def ours(folder: Path, names: list[str]) -> Callable[[], Iterable[Any]]:
  """Returns an epoch of this package."""
  import jax

  from fedreid_jax.config import schema
  from fedreid_jax.data import augment

  config = schema.default().augment
  config.pad, config.flip, config.erase = PAD, 0.5, ERASE
  train = jax.jit(augment.make(config, MEAN, STD).train)
  # Compiled once for all epochs, and not measured.
  train(jax.random.key(0), np.zeros((BATCH, HEIGHT, WIDTH, 3), np.uint8))

  def epoch() -> Iterable[Any]:
    images = decoded(folder, names, HEIGHT, WIDTH)
    order = np.random.default_rng(0).permutation(len(images))
    for step in range(len(order) // BATCH):
      rows = np.sort(order[step * BATCH : (step + 1) * BATCH])
      yield train(jax.random.key(step), images[rows]).block_until_ready()

  return epoch


def augmented(paths: list[Path]) -> np.ndarray:
  """Decodes and augments a batch with Pillow and NumPy."""
  rng = np.random.default_rng(int(paths[0].stem))
  batch = np.empty((len(paths), HEIGHT, WIDTH, 3), np.float32)
  mean, std = np.asarray(MEAN, np.float32), np.asarray(STD, np.float32)
  for image, path in zip(batch, paths, strict=True):
    with Image.open(path) as opened:
      small = opened.convert('RGB')
      pixels = np.asarray(
        small.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
      )
    padded = np.pad(pixels, ((PAD, PAD), (PAD, PAD), (0, 0)))
    y, x = rng.integers(0, 2 * PAD + 1, 2)
    cut = padded[y : y + HEIGHT, x : x + WIDTH]
    if rng.random() < 0.5:
      cut = cut[:, ::-1]
    image[:] = (cut / np.float32(255) - mean) / std
    if rng.random() < ERASE:
      erase(image, rng)
  return batch


def erase(image: np.ndarray, rng: np.random.Generator) -> None:
  """Fills a random rectangle with zeros."""
  for _ in range(TRIES):
    area = rng.uniform(*AREA) * HEIGHT * WIDTH
    ratio = np.exp(rng.uniform(np.log(0.3), np.log(3.3)))
    high, wide = int((area * ratio) ** 0.5), int((area / ratio) ** 0.5)
    if high < HEIGHT and wide < WIDTH:
      y, x = rng.integers(HEIGHT - high), rng.integers(WIDTH - wide)
      image[y : y + high, x : x + wide] = 0
      return


def pillow(folder: Path, names: list[str]) -> Callable[[], Iterable[Any]]:
  """Returns an epoch of Pillow in a process for each core."""
  pool = multiprocessing.get_context('spawn').Pool(CORES)

  def epoch() -> Iterable[Any]:
    order = np.random.default_rng(0).permutation(len(names))
    steps = len(names) // BATCH
    parts = np.reshape(order[: steps * BATCH], (steps, BATCH))
    yield from pool.imap(
      augmented, ([folder / names[k] for k in rows] for rows in parts)
    )

  return epoch


def torchvision(folder: Path, _: list[str]) -> Callable[[], Iterable[Any]]:
  """Returns an epoch of torchvision's folder and loader."""
  from torch.utils import data  # pyright: ignore[reportMissingImports]
  from torchvision import (  # pyright: ignore[reportMissingImports]
    datasets,
    transforms,
  )

  size = HEIGHT, WIDTH
  cubic = transforms.InterpolationMode.BICUBIC
  steps = [
    transforms.Resize(size, cubic),
    transforms.RandomHorizontalFlip(),
    transforms.Pad(PAD),
    transforms.RandomCrop(size),
    transforms.ToTensor(),
    transforms.Normalize(MEAN, STD),
    transforms.RandomErasing(ERASE, AREA),
  ]
  # The folder above has one folder of images, which is one class.
  found = datasets.ImageFolder(str(folder.parent), transforms.Compose(steps))
  return lambda: data.DataLoader(
    found, BATCH, shuffle=True, num_workers=CORES, drop_last=True
  )


LOADERS = {
  'fedreid_jax': ours,
  'torchvision': torchvision,
  'Pillow': pillow,
}


def loaders(scratch: Path) -> None:
  """Prints the speed of each loader in a first and a second epoch."""
  folder = scratch / 'files' / 'images'
  folder.mkdir(parents=True)
  names, rows = made_up.files(folder, _IMAGES.value), []
  for name, make in LOADERS.items():
    try:
      epoch = make(folder, names)
    except ImportError as error:
      rows.append((name, str(error), ''))
      continue
    speeds: list[str] = []
    for _ in range(2):
      start = time.perf_counter()
      number = BATCH * sum(1 for _ in epoch())
      speeds.append(f'{number / (time.perf_counter() - start):,.0f}')
    rows.append((name, *speeds))
  columns = 'loader', 'images/s, first epoch', 'later epochs'
  show.rows(f'{len(names)} files of 128x64 to 256x128', columns, rows)


def crops(scratch: Path) -> None:
  """Prints the times of rounds with images on devices, and with copies."""
  import jax

  import fedreid_jax as fr
  from fedreid_jax.config import schema

  folder = scratch / 'files' / 'images'
  folder.mkdir(parents=True)
  names = made_up.files(folder, _CROPS.value)
  start = time.perf_counter()
  images = decoded(folder, names, *SMALL)
  print(f'decoded in {time.perf_counter() - start:.1f} s')
  config = schema.default()
  config.model.name, config.model.features = 'convnet', (32, 64, 128, 128)
  config.local.batch, config.local.epochs, config.local.steps = 64, 1, 0
  size = len(images) // CLIENTS
  labels = np.arange(size) % 100
  clients = [
    fr.client_data(f'c{k}', images[k * size : (k + 1) * size], labels)
    for k in range(CLIENTS)
  ]
  limit = SHARE * images.nbytes / jax.device_count() / 2**20
  runs: dict[str, made_up.Timed] = {}
  for kind, budget in (('on the devices', 1e6), ('copied', limit)):
    config.execution.image_budget_mb = budget
    executor, _, variables, _ = made_up.rounds(config, clients)
    assert executor.simulated.resident == (kind == 'on the devices')
    runs[kind] = made_up.Timed(executor, *executor.init(variables))
  # The first round of each compiles.
  number = max(run()[0] for run in runs.values())
  found: dict[str, list[float]] = {kind: [] for kind in runs}
  for _, kind in itertools.product(range(_TURNS.value), runs):
    found[kind].append(runs[kind]()[1])
  rows = [
    (
      kind,
      f'{np.median(seconds):.2f}',
      f'{number / np.median(seconds):,.0f}',
    )
    for kind, seconds in found.items()
  ]
  show.rows(
    f'{number:,} crops of {SMALL[0]}x{SMALL[1]}, {jax.device_count()} devices, '
    f'{limit:.3g} MB of images on each',
    ('images', 's a round', 'images/s'),
    rows,
  )
  pairs = zip(*found.values(), strict=True)
  waits = [100 * (1 - here / copied) for here, copied in pairs]
  print('devices wait, % of a round:', *(f'{x:.1f}' for x in waits))
  print(f'copies alone: {copies(images):,.0f} images/s')


def copies(images: np.ndarray) -> float:
  """Returns the images per second of copies of random rows to a device."""
  import jax

  rows = np.random.default_rng(0).permutation(len(images))
  start = time.perf_counter()
  for part in np.array_split(rows, max(len(rows) // 4096, 1)):
    jax.device_put(images[part]).block_until_ready()
  return len(rows) / (time.perf_counter() - start)


def main(_: list[str]) -> None:
  """Prints the tables."""
  with tempfile.TemporaryDirectory() as scratch:
    (crops if _CROPS.value else loaders)(Path(scratch))


if __name__ == '__main__':
  app.run(main)
