"""Time and memory of CMC, mAP and mINP at the size of MSMT17.

  python -m benchmarks.ranking [--scale=0.1]

There are 11,659 queries, 82,161 gallery images, 3,060 identities, 15 cameras
and 2048 random features per image. The distance products and the ranking are
timed separately; a plain NumPy evaluator (argsort of every query) ranks the
first twentieth of the queries, and its time is multiplied by 20. Memory is the
peak of the process minus its memory after the features were created.
"""

import resource
import sys
import time
from typing import NamedTuple

import numpy as np
from absl import app, flags

from fedreid_jax.data import protocols
from fedreid_jax.evaluation import distances as distance_lib
from fedreid_jax.evaluation import gallery as gallery_lib
from fedreid_jax.evaluation import ranking

_SCALE = flags.DEFINE_float(
  'scale', 1.0, 'Share of the images and identities.', lower_bound=0.01
)

NUM_QUERIES, NUM_GALLERY, NUM_IDS, NUM_CAMERAS = 11_659, 82_161, 3_060, 15
WIDTH = 2048
NOISE = 6.0
PLAIN_SHARE = 20


class World(NamedTuple):
  """Random features and labels."""

  query: np.ndarray
  gallery: np.ndarray
  labels: gallery_lib.Labels


def make_world(scale: float) -> World:
  """Returns noisy copies of one centre per identity."""
  rng = np.random.default_rng(0)
  num_ids = max(2, round(scale * NUM_IDS))
  centres = rng.standard_normal((num_ids, WIDTH), dtype=np.float32)
  sides = []
  for full_size in (NUM_QUERIES, NUM_GALLERY):
    ids = rng.integers(0, num_ids, round(scale * full_size))
    features = np.empty((ids.size, WIDTH), np.float32)
    for row, identity in zip(features, ids, strict=True):
      rng.standard_normal(dtype=np.float32, out=row)
      row *= NOISE
      row += centres[identity]
    sides.append((features, ids, rng.integers(0, NUM_CAMERAS, ids.size)))
  (query, q_ids, q_cameras), (gallery, g_ids, g_cameras) = sides
  labels = gallery_lib.check_labels(q_ids, g_ids, q_cameras, g_cameras)
  return World(query, gallery, labels)


def peak_mib() -> float:
  """Returns the peak memory of the process."""
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak / 2**20 if sys.platform == 'darwin' else peak / 2**10


def timed(blocks, seconds):
  """Yields blocks and appends the time to compute each to `seconds`."""
  while True:
    start = time.perf_counter()
    block = next(blocks, None)
    seconds.append(time.perf_counter() - start)
    if block is None:
      return
    yield block


def plain_mean_precision(blocks, labels: gallery_lib.Labels) -> float:
  """Returns mAP in percent with argsort, comparison and cumulative sums."""
  precisions, query = [], 0
  for block in blocks:
    for order in np.argsort(block, axis=1):
      same = labels.gallery_ids[order] == labels.query_ids[query]
      own = labels.gallery_cameras[order] == labels.query_cameras[query]
      hits = same[~(same & own)]
      if hits.any():
        precision = np.cumsum(hits) / np.arange(1, hits.size + 1)
        precisions.append((precision * hits).sum() / hits.sum())
      query += 1
  return 100 * float(np.mean(precisions))


def main(argv: list[str]) -> None:
  """Prints the table."""
  if len(argv) > 1:
    raise app.UsageError(f'unknown arguments {argv[1:]}')
  protocol = protocols.get('market')
  world = make_world(_SCALE.value)
  held = peak_mib()

  # Blocks are not prefetched: products and ranking are timed separately.
  blocks = distance_lib.squared_blocks(world.query, world.gallery, chunk=1)
  products = []
  start = time.perf_counter()
  scores = ranking.score_queries(
    timed(blocks, products), world.labels, protocol
  )
  ranked = time.perf_counter() - start - sum(products)
  result = ranking.summarise(scores, protocol, (1,), len(world.gallery))
  over = peak_mib() - held

  num_plain = max(1, len(world.query) // PLAIN_SHARE)
  blocks = distance_lib.squared_blocks(
    world.query[:num_plain], world.gallery, chunk=1
  )
  products_again = []
  start = time.perf_counter()
  precision = plain_mean_precision(timed(blocks, products_again), world.labels)
  plain = time.perf_counter() - start - sum(products_again)
  plain *= len(world.query) / num_plain
  ours = 100 * scores.precision[:num_plain][scores.valid[:num_plain]].mean()

  print(
    f'{len(world.query):,} queries x {len(world.gallery):,} gallery images, '
    f'mAP {result["mAP"]:.2f}, rank-1 {result["rank1"]:.2f}, '
    f'{result["ties"]:,} ties'
  )
  print(f'mAP of the first {num_plain:,}: {ours:.4f}, plain {precision:.4f}')
  print(f'{"step":<44}{"seconds":>9}')
  print(
    f'{"distance products (compilation included)":<44}{sum(products):>9.1f}'
  )
  print(f'{"CMC + mAP + mINP":<44}{ranked:>9.1f}')
  print(f'{"plain argsort mAP, 1/20 of queries x 20":<44}{plain:>9.1f}')
  print(f'peak memory over the features: {over:,.0f} MiB')


if __name__ == '__main__':
  app.run(main)
