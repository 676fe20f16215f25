"""How difficult the synthetic world is: chance, pixels, and trained models.

  python -m benchmarks.world [--source=synthetic_v1] [--targets=mall,garden]
    [--seeds=0,1] [--recipes=fedpav,centralised,dfh] [--arg='rounds=5']
  python -m benchmarks.world --speed

The rows of the table are measures on domains that no model is trained on:

  chance       a random order of the gallery
  raw pixels   cosine distance of images reduced to blocks of 4x4 pixels
  only NAME    a model that is trained on one domain of the preset
  RECIPE       by default `fedpav`, which trains on all of them in a federation,
               and `centralised`, in one place

Recipes have their preset `synthetic`; models of one domain are those of
`centralised`. The mean over seeds is printed with their range. `--speed` prints
the CPU time of rendering instead; the versions take turns.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

import fedreid_jax as fr
from fedreid_jax.config import validation
from fedreid_jax.data import load
from fedreid_jax.data.federation import Images, Target
from fedreid_jax.data.synthetic import photographs, versions

_SOURCE = flags.DEFINE_enum(
  'source', versions.UNVERSIONED, versions.NAMES, 'Version of the world.'
)
_TARGETS = flags.DEFINE_list('targets', ['mall'], 'Domains to test on.')
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'Seeds of the trained models.')
_RECIPES = flags.DEFINE_list(
  'recipes', ['fedpav', 'centralised'], 'Recipes that train on all domains.'
)
_ARG = flags.DEFINE_string('arg', '', 'Changes of every run, KEY=VALUE,...')
_ALONE = flags.DEFINE_bool('alone', True, 'Train on single domains, too.')

_SPEED = flags.DEFINE_bool('speed', False, 'Measure the time of rendering.')

BLOCK = 4  # pixels on a side
SHUFFLES = 20
TURNS = 8
HEIGHTS = 32, 64, 128  # of images whose rendering is timed, twice the width
METRICS = 'mAP', 'rank1'
Row = dict[str, list[tuple[float, ...]]]  # by target, one entry per seed


def floors(targets: tuple[Target, ...]) -> dict[str, Row]:
  """Returns the scores of chance and of raw pixels."""
  rng = np.random.default_rng(0)
  rows: dict[str, Row] = {'chance': {}, 'raw pixels': {}}
  for target in targets:
    pixels = target.images.images()
    places = [rng.random((len(pixels), 8)) for _ in range(SHUFFLES)]
    chance = np.mean([_scores(target, place) for place in places], axis=0)
    rows['chance'][target.name] = [tuple(chance)]
    rows['raw pixels'][target.name] = [_scores(target, blocks(pixels))]
  return rows


def blocks(pixels: np.ndarray) -> np.ndarray:
  """Returns the means of blocks of pixels without the mean of an image.

  Args:
    pixels: uint8 `[M, H, W, ch]`.
  """
  num, height, width, channels = pixels.shape
  tall, wide = height // BLOCK, width // BLOCK
  cut = pixels[:, : tall * BLOCK, : wide * BLOCK].astype(np.float32)
  means = cut.reshape(num, tall, BLOCK, wide, BLOCK, channels).mean(axis=(2, 4))
  flat = means.reshape(num, -1)
  return flat - flat.mean(axis=1, keepdims=True)


def _scores(target: Target, features: np.ndarray) -> tuple[float, ...]:
  """Returns the metrics of features of all images of a target."""
  (trial,) = target.trials
  images: Images = target.images
  found: Any = fr.evaluate_retrieval(
    features[trial.query],
    features[trial.gallery],
    *(images.identities[rows] for rows in trial),
    *(images.cameras[rows] for rows in trial),
    metric='cosine',
  )
  return tuple(float(found[metric]) for metric in METRICS)


def trained(recipe: str, changes: dict[str, Any]) -> Row:
  """Trains a recipe with every seed and returns the last scores."""
  row: Row = {}
  for seed in map(int, _SEEDS.value):
    config = _config(recipe, changes | {'seed': seed})
    with tempfile.TemporaryDirectory() as folder:
      results = fr.train(config, workdir=Path(folder))
    for entry in results['evaluation']:
      if entry['round'] == results['rounds']:
        scores = tuple(entry['metrics'][metric] for metric in METRICS)
        row.setdefault(entry['target'], []).append(scores)
  return row


def rows() -> Iterator[tuple[str, Row]]:
  """Yields the rows of the table, each when it is measured."""
  config = validation.validate(_config('fedpav', {}))
  yield from floors(load.load(config.data, clients=False).targets).items()
  for source in config.data.sources if _ALONE.value else ():
    yield f'only {source}', trained('centralised', {'data.sources': (source,)})
  for recipe in _RECIPES.value:
    yield recipe, trained(recipe, {})


def _config(recipe: str, changes: dict[str, Any]) -> Any:
  own = f',{_ARG.value}' if _ARG.value else ''
  world = {'data.source': _SOURCE.value, 'data.targets': tuple(_TARGETS.value)}
  return fr.load_config(f'{recipe}:synthetic{own}', world | changes)


def line(name: str, row: Row) -> str:
  """Returns a row of the table."""
  cells = []
  for target in _TARGETS.value:
    for values in zip(*row[target], strict=True):
      spread = f' ({min(values):.1f}-{max(values):.1f})'
      one = len(values) == 1
      cells.append(f'{np.mean(values):.1f}' + ('' if one else spread))
  return ' | '.join(['', name, *cells, '']).strip()


def rendering(height: int) -> dict[str, float]:
  """Returns the median CPU time of an image of each version in ms."""
  sizes = 48, 4, 4  # as a training domain of the preset `synthetic`
  num = int(np.prod(sizes))
  times: dict[str, list[float]] = {name: [] for name in versions.VERSIONS}
  for turn in range(TURNS + 1):  # the first one compiles
    for name, found in times.items():
      start = time.process_time()
      photographs.generate(
        turn, *sizes, height=height, width=height // 2, source=name
      )
      found.append(1000 * (time.process_time() - start) / num)
  return {name: float(np.median(found[1:])) for name, found in times.items()}


def main(argv: list[str]) -> None:
  """Prints a Markdown table."""
  del argv
  if _SPEED.value:
    for height in HEIGHTS:
      found = rendering(height)
      shown = ', '.join(f'{k} {ms:.3f} ms' for k, ms in found.items())
      first, last = found[versions.FIRST], found[versions.NEWEST]
      print(f'{height}x{height // 2}: {shown}, ratio {last / first:.2f}')
    return
  heads = [f'{t} {m}' for t in _TARGETS.value for m in METRICS]
  print(f'data.source={_SOURCE.value}, seeds {", ".join(_SEEDS.value)}\n')
  print(' | '.join(['', 'trained on', *heads, '']).strip())
  print('|---' * (1 + len(heads)) + '|', flush=True)
  for name, row in rows():
    print(line(name, row), flush=True)


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
