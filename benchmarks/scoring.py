"""Whole scoring of MSMT17's size, of this package and of fast-reid, in turn.

  python -m benchmarks.scoring [--share=0.1] [--turns=3] [--metric=cosine]

Scoring is all between features and mAP: distances, CMC, mAP and mINP. The
features are those of `benchmarks.ranking`, with a share of the queries, because
fast-reid keeps all distances and their argsort. Its path is a product in
PyTorch and the Cython program of its package; both are used if

  pip install torch==2.13.0 cython setuptools && pip install --no-deps fastreid

has installed them. Every contender has a process of its own. CPU seconds depend
less on other programs of the machine than those of the clock. Memory is the
peak of the process minus its memory after the features were created.
"""

import importlib.util
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks import ranking, show, turns

_SHARE = flags.DEFINE_float('share', 0.1, 'Share of the queries.', 0.01, 1.0)
_TURNS = flags.DEFINE_integer('turns', 3, 'Measured turns of each.', 1)
_METRIC = flags.DEFINE_enum(
  'metric', 'cosine', ['euclidean', 'cosine'], 'Distance.'
)
_WORKER = flags.DEFINE_string('worker', '', 'Internal: name of the contender.')

OURS, PEER = 'fedreid_jax', 'PyTorch and fast-reid'
NEEDED = 'torch', 'Cython', 'fastreid'


def ours(world: ranking.World):
  """Returns (mAP, mINP, rank-1) in percent."""
  from fedreid_jax import evaluate_retrieval

  labels = world.labels
  found = evaluate_retrieval(
    world.query,
    world.gallery,
    labels.query_ids,
    labels.gallery_ids,
    labels.query_cameras,
    labels.gallery_cameras,
    metric=_METRIC.value,
  )
  return found['mAP'], found['mINP'], found['rank1']


def compiled():
  """Returns fast-reid's module `rank_cy`, compiled from its package."""
  import pyximport  # pyright: ignore[reportMissingImports]

  spec = importlib.util.find_spec('fastreid')
  assert spec and spec.submodule_search_locations
  package = Path(spec.submodule_search_locations[0])
  folder = tempfile.mkdtemp()
  shutil.copy(package / 'evaluation/rank_cylib/rank_cy.pyx', folder)
  sys.path.insert(0, folder)
  pyximport.install(
    build_dir=folder, setup_args={'include_dirs': np.get_include()}
  )
  return importlib.import_module('rank_cy')


def peer(world: ranking.World, rank_cy):
  """Returns (mAP, mINP, rank-1) in percent."""
  import torch  # pyright: ignore[reportMissingImports]

  query, gallery = (
    torch.from_numpy(world.query),
    torch.from_numpy(world.gallery),
  )
  if _METRIC.value == 'cosine':
    query = torch.nn.functional.normalize(query)
    gallery = torch.nn.functional.normalize(gallery)
    distance = 1 - torch.mm(query, gallery.T)
  else:
    squares = [rows.square().sum(1) for rows in (query, gallery)]
    distance = squares[0][:, None] + squares[1][None]
    distance.addmm_(query, gallery.T, alpha=-2)
  labels = world.labels
  cmc, precision, penalty = rank_cy.evaluate_cy(
    distance.numpy(),
    labels.query_ids,
    labels.gallery_ids,
    labels.query_cameras,
    labels.gallery_cameras,
    50,
  )
  return 100 * precision.mean(), 100 * penalty.mean(), 100 * cmc[0]


def worker(name: str) -> None:
  """Scores once for every line of the input."""
  world = ranking.make_world(1.0)
  number = max(1, round(_SHARE.value * len(world.query)))
  labels = world.labels._replace(
    query_ids=world.labels.query_ids[:number],
    query_cameras=world.labels.query_cameras[:number],
  )
  world = world._replace(query=world.query[:number].copy(), labels=labels)
  module = compiled() if name == PEER else None
  held = ranking.peak_mib()

  def once() -> str:
    start, used = time.perf_counter(), time.process_time()
    scores = peer(world, module) if name == PEER else ours(world)
    took = time.perf_counter() - start, time.process_time() - used
    found = [*took, ranking.peak_mib() - held, *map(float, scores)]
    return json.dumps(found)

  turns.serve(once)


def main(argv: list[str]) -> None:
  """Prints seconds, memory and scores of each contender."""
  del argv
  if _WORKER.value:
    worker(_WORKER.value)
    return
  names = [OURS]
  if all(importlib.util.find_spec(name) for name in NEEDED):
    names.append(PEER)
  own = [f'--{flag.name}={flag.value}' for flag in (_SHARE, _METRIC)]
  lines = turns.compete(
    'benchmarks.scoring', {name: {} for name in names}, _TURNS.value, 1, own
  )
  rows = []
  for name in names:
    found = np.asarray([json.loads(line) for line in lines[name]])
    wall, cpu, memory, *scores = np.median(found, axis=0)
    fastest = found.min(axis=0)
    times = f'{wall:.1f}', f'{fastest[0]:.1f}', f'{cpu:.1f}'
    rows.append((name, *times, f'{memory:,.0f}', *(f'{s:.3f}' for s in scores)))
  columns = (
    'program',
    'seconds',
    'least',
    'CPU seconds',
    'MiB',
    'mAP',
    'mINP',
    'rank-1',
  )
  show.rows(
    f'scoring {_SHARE.value:.0%} of the queries, {_METRIC.value}, '
    f'median of {_TURNS.value}',
    columns,
    rows,
  )


if __name__ == '__main__':
  app.run(main)
