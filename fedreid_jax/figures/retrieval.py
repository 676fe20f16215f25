"""Retrieval tests of runs: match curves, distances and ranked lists."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedreid_jax.data import tracklets
from fedreid_jax.evaluation import evaluator, gallery
from fedreid_jax.figures import canvas
from fedreid_jax.figures.canvas import Photo
from fedreid_jax.round import placement
from fedreid_jax.training.loaded_run import LoadedRun

RANKS = tuple(range(1, 21))
BINS = 60
QUERIES = 500  # largest number; their pairs with the gallery are counted
SHOWN = 10  # images beside a query

Runs = Sequence[tuple[str, LoadedRun]]  # (label, run)


def match_rates(run: LoadedRun, target: str = '') -> np.ndarray:
  """Returns the match rate in percent at each of `RANKS` by the protocol."""
  evaluate = evaluator.make(
    replace(run.config.evaluation, ranks=RANKS),
    (run.target(target),),
    run.model,
    run.transforms,
    placement.make_mesh(run.config.execution.devices or None),
  )
  metrics = evaluate({run.name: run.variables})[0]['metrics']
  return np.asarray([metrics[f'rank{rank}'] for rank in RANKS])


def draw_match_curves(runs: Runs, target: str = '') -> Any:
  """Draws the share of queries with a match among the first k, a line per run.

  Without a target, the first target of each run is shown.
  """
  figure = canvas.new(5.2, 3.8)
  axes = figure.subplots()
  for k, (label, run) in enumerate(runs):
    name = run.target(target).name
    values = match_rates(run, target)
    axes.plot(
      RANKS,
      values,
      label=f'{label}, {name}: {values[0]:.1f} at rank 1',
      color=canvas.COLOURS[k % len(canvas.COLOURS)],
      marker='osD^vPX*'[k % 8],
      markersize=4,
    )
  canvas.plain(axes)
  axes.set_xlabel('rank')
  axes.set_ylabel('queries with a match, %')
  axes.set_xticks([1, 5, 10, 15, 20])
  axes.set_ylim(top=101)
  axes.legend(fontsize=8, loc='lower right')
  return figure


def rank(
  run: LoadedRun,
  target: str,
  num: int,
  seed: int,
  places: Sequence[int] | None = None,
) -> list[gallery.Ranked]:
  """Ranks the gallery of a test for some queries, as `gallery.draw_lists`."""
  test = run.target(target)
  features = run.ranked(test.images.images(), test.images.modalities)
  if test.images.tracklets is not None:
    features = tracklets.pooled(features, test.images.tracklets)
  config = run.config.evaluation
  return gallery.draw_lists(features, test, config, num, seed, places)


def distances_of_pairs(
  run: LoadedRun, target: str = '', seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
  """Distances of the pairs of a test, (within, between) identities.

  A pair is a query and an image that the protocol does not hide from it. Of
  more than `QUERIES` queries, some are drawn at random.
  """
  queries = rank(run, target, QUERIES, seed)
  distance = np.concatenate([r.distance for r in queries])
  right = np.concatenate([r.right for r in queries])
  return distance[right], distance[~right]


def draw_distances(
  runs: Runs, target: str = '', seed: int = 0, panels: Any = None
) -> Any:
  """Draws distances within and between identities (L2RW, figure 3).

  A panel per run has both densities, their means and the gap. Without a
  target, the first target of each run is shown; without panels, the figure is
  new.
  """
  if panels is None:
    _, panels = canvas.row(len(runs), 4.2, 3.6)
  for axes, (label, run) in zip(panels, runs, strict=True):
    within, between = distances_of_pairs(run, target, seed)
    edges = np.linspace(0, max(within.max(), between.max()), BINS + 1)
    means = []
    for kind, values, colour in (
      ('same identity', within, canvas.RIGHT),
      ('other identities', between, canvas.WRONG),
    ):
      mean = float(values.mean())
      axes.hist(
        values,
        edges,
        density=True,
        histtype='stepfilled',
        facecolor=(colour, 0.35),
        edgecolor=colour,
        label=f'{kind}, mean {mean:.3g}',
      )
      axes.axvline(mean, 0, 0.78, color=colour, linestyle='--', linewidth=1)
      means.append(mean)
    axes.set_title(
      f'{label}, {run.target(target).name}: gap {means[1] - means[0]:.3g}',
      fontsize=10,
    )
    canvas.plain(axes)
    name = run.config.evaluation.metric
    axes.set_xlabel(f'{"Euclidean" if name == "euclidean" else name} distance')
    axes.set_ylabel('density')
    # The legend is above the histograms and does not cover them.
    axes.margins(y=0.3)
    axes.legend(fontsize=8, loc='upper left')
  return panels[0].figure


def draw_ranked(
  run: LoadedRun,
  label: str,
  target: str = '',
  num: int = 8,
  seed: int = 0,
  places: Sequence[int] | None = None,
) -> Any:
  """Draws a row per query, without images that the protocol hides.

  Args:
    target: '' for the first.
    num: number of queries, drawn at random among those with a match.
    places: numbers of the queries, instead of a draw.
  """
  test = run.target(target)
  images, views = test.images.images(), captions(test.images.cameras)
  rows: list[list[Photo | None]] = []
  for found in rank(run, target, num, seed, places):
    row: list[Photo | None] = [
      Photo(images[found.query], None, views[found.query])
    ]
    pairs = zip(found.gallery[:SHOWN], found.right[:SHOWN], strict=True)
    row += [Photo(images[k], bool(right), views[k]) for k, right in pairs]
    rows.append(row + [None] * (SHOWN + 1 - len(row)))
  return canvas.sheet(
    rows,
    ['query', *(str(k + 1) for k in range(SHOWN))],
    f'{label}, {test.name}: solid frame, the same person; dashed, another',
    gaps=(1,),
  )


def captions(cameras: np.ndarray) -> list[str]:
  """Returns names of the cameras `[M]`, '' for a target without cameras."""
  # A target without cameras has the numbers of its images as cameras.
  if len(np.unique(cameras)) == len(cameras):
    return [''] * len(cameras)
  return [f'camera {camera}' for camera in cameras.tolist()]
