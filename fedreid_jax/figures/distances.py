"""Distances within and between identities (L2RW, figure 3)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedreid_jax.figures import canvas, lists
from fedreid_jax.training.loaded_run import LoadedRun

BINS = 60
QUERIES = 500  # largest number; their pairs with the gallery are counted


def split(
  run: LoadedRun, target: str = '', seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
  """Returns distances of the pairs of a test, (within, between) identities.

  A pair is a query and an image that the protocol does not hide from it.

  Args:
    run: run with the model.
    target: name of the test, '' for the first.
    seed: random seed of the queries, if there are more than `QUERIES`.
  """
  ranked = lists.draw(run, target, QUERIES, seed)
  distance = np.concatenate([r.distance for r in ranked])
  right = np.concatenate([r.right for r in ranked])
  return distance[right], distance[~right]


def draw(
  runs: Sequence[tuple[str, LoadedRun]], target: str = '', seed: int = 0
) -> Any:
  """Draws a panel per run: both densities, their means and the gap.

  Args:
    runs: (label, run).
    target: name of the test, '' for the first of each run.
    seed: random seed of the queries.
  """
  figure, places = canvas.row(len(runs), 4.2, 3.6)
  for axes, (label, run) in zip(places, runs, strict=True):
    within, between = split(run, target, seed)
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
  return figure
