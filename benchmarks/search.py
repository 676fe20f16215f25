"""Time and memory of the search of a large gallery.

  python -m benchmarks.search [--rows=1000000] [--width=512] [--queries=100]
  python -m benchmarks.search --width=128 --persons=50000

Random vectors are written to a file, which every contender opens in a process
of its own, one after another: `product` and `faiss` are the backends of
`fedreid_jax.Gallery`, which search the memory-mapped file; `IndexFlat` is an
index of FAISS that copies the vectors first. The file is in the page cache.
With `--persons` the vectors are clusters around so many random centres, and
`ivfpq`, the approximate index of `fedreid search --index=ivfpq`, replaces
`IndexFlat`.

"Open" is the time until a search can begin (the backends check that all values
are finite, `IndexFlat` copies them, `ivfpq` is built and its recall measured),
"first" that of the first search, compilation included, and "again" that of the
same search afterwards. Every time is followed by the CPU time of the process in
brackets, which depends less on other programs of the machine. Memory is the
peak of what the process allocates beside its memory-mapped files, above that of
the process with its imports. All contenders but `ivfpq` must find the same
images; "found" is the share of these that a contender finds.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks import show
from fedreid_jax.data import cache

_ROWS = flags.DEFINE_integer('rows', 1_000_000, 'Vectors of the gallery.', 1)
_WIDTH = flags.DEFINE_integer('width', 512, 'Numbers of a vector.', 1)
_QUERIES = flags.DEFINE_integer('queries', 100, 'Queries of a search.', 2)
_PERSONS = flags.DEFINE_integer(
  'persons', 0, 'Clusters of the vectors; 0 for independent vectors.', 0
)
_SPREAD = flags.DEFINE_float(
  'spread', 0.5, 'Standard deviation of a cluster, that of the centres is 1.'
)
_METRIC = flags.DEFINE_enum(
  'metric', 'euclidean', ['euclidean', 'cosine'], 'Distance.'
)
_WORKER = flags.DEFINE_string('worker', '', 'Internal: contender and file.')

NEIGHBOURS = 10
CONTENDERS = ('product', 'faiss', 'IndexFlat')
CLUSTERED = ('product', 'faiss', 'ivfpq')
PART = 50_000  # vectors written at a time


class Memory:
  """Peak of the memory that this process allocates."""

  def __init__(self):
    self.peak = 0
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)
    self._thread.start()

  def _watch(self) -> None:
    while not self._stop.wait(0.01):
      self.peak = max(self.peak, allocated())

  def close(self) -> None:
    """Ends the watch."""
    self._stop.set()
    self._thread.join()


def allocated() -> int:
  """Returns the MiB of this process that are of no file."""
  for line in Path('/proc/self/status').read_text().splitlines():
    if line.startswith('RssAnon:'):
      return int(line.split()[1]) >> 10
  raise OSError('/proc/self/status has no RssAnon')


def now() -> tuple[float, float]:
  """Returns seconds of a clock and of the processors that were used."""
  return time.perf_counter(), time.process_time()


def write(path: Path) -> None:
  """Writes random vectors of length 1, in clusters with --persons."""
  shape = _ROWS.value, _WIDTH.value
  rng = np.random.default_rng(0)
  centres = rng.standard_normal((_PERSONS.value, _WIDTH.value), np.float32)
  found = np.lib.format.open_memmap(path, 'w+', np.float32, shape)
  for first in range(0, len(found), PART):
    part = rng.standard_normal(found[first : first + PART].shape, np.float32)
    if _PERSONS.value:
      persons = rng.integers(0, _PERSONS.value, len(part))
      part = centres[persons] + np.float32(_SPREAD.value) * part
    part /= np.linalg.norm(part, axis=1, keepdims=True)
    found[first : first + PART] = part
  found.flush()


def worker(name: str, path: str) -> None:
  """Prints the measurements of one contender."""
  import fedreid_jax as fr
  from fedreid_jax.evaluation import index

  vectors = np.load(path, mmap_mode='r')
  for first in range(0, len(vectors), PART):
    vectors[first : first + PART].max()  # reads the file once
  rng = np.random.default_rng(1)
  queries = vectors[:: max(1, len(vectors) // _QUERIES.value)][: _QUERIES.value]
  noise = rng.standard_normal(queries.shape, np.float32)
  queries = queries + np.float32(0.5 / _WIDTH.value**0.5) * noise
  if name == 'product':
    import jax

    jax.devices()
  else:
    index.library()
  before, memory = allocated(), Memory()
  clock = [now()]
  if name == 'IndexFlat':
    faiss = index.library()
    kind = {'euclidean': faiss.IndexFlatL2, 'cosine': faiss.IndexFlatIP}
    flat = kind[_METRIC.value](_WIDTH.value)  # lengths are 1
    flat.add(vectors)

    def search(few: np.ndarray) -> np.ndarray:
      return flat.search(few, NEIGHBOURS)[1]
  else:
    made, backend = None, name
    if name == 'ivfpq':
      from fedreid_jax.evaluation import approximate

      made, backend = approximate.build(vectors, _METRIC.value), 'faiss'
    gallery = fr.Gallery(
      vectors,
      np.arange(len(vectors)),
      metric=_METRIC.value,
      backend=backend,
      index=made,
    )

    def search(few: np.ndarray) -> np.ndarray:
      return gallery.search(few, NEIGHBOURS)[0]

  clock.append(now())
  found = search(queries)
  clock.append(now())
  search(queries)
  clock.append(now())
  search(queries[:1])
  clock.append(now())
  memory.close()
  code, share = zlib.crc32(np.ascontiguousarray(found).tobytes()), 1.0
  nearest = Path(path).with_name('nearest.npy')
  if name == 'faiss':
    np.save(nearest, found)
  elif name == 'ivfpq':
    pairs = zip(np.load(nearest), found, strict=True)
    share = np.mean([np.isin(exact, row).mean() for exact, row in pairs])
  for wall, processor in np.diff(clock, axis=0):
    print(f'{wall:.2f}({processor:.2f})', end=' ')
  print(memory.peak - before, f'{share:.3f}', code)


def main(argv: list[str]) -> None:
  """Prints one table."""
  del argv
  if _WORKER.value:
    worker(*_WORKER.value.split('|'))
    return
  environment = os.environ | {
    'JAX_COMPILATION_CACHE_DIR': str(cache.cache_dir() / 'xla')
  }
  shown, codes = [], set()
  with tempfile.TemporaryDirectory() as scratch:
    path = Path(scratch, 'vectors.npy')
    write(path)
    for name in CLUSTERED if _PERSONS.value else CONTENDERS:
      done = subprocess.run(
        [
          *(sys.executable, '-m', 'benchmarks.search'),
          *(f'--worker={name}|{path}', f'--metric={_METRIC.value}'),
          *(f'--width={_WIDTH.value}', f'--queries={_QUERIES.value}'),
          f'--persons={_PERSONS.value}',
        ],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
      )
      *cells, code = done.stdout.split()
      if name != 'ivfpq':
        codes.add(code)
      shown.append((name, *cells))
  queries = f'{_QUERIES.value} queries'
  show.rows(
    f'{NEIGHBOURS} nearest of {_ROWS.value:,} vectors of {_WIDTH.value}, '
    f'{_METRIC.value}',
    ('', 'open, s', f'{queries}, first', 'again', 'one query', 'MiB', 'found'),
    shown,
  )
  print('the same nearest images' if len(codes) == 1 else 'OTHER IMAGES')


if __name__ == '__main__':
  app.run(main)
