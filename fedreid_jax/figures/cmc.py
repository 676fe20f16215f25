"""Cumulative match curves: queries with a match among the first k."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedreid_jax.evaluation import evaluator
from fedreid_jax.figures import canvas
from fedreid_jax.round.devices import placement
from fedreid_jax.training.loaded_run import LoadedRun

RANKS = tuple(range(1, 21))


def curve(run: LoadedRun, target: str = '') -> np.ndarray:
  """Returns the match rate in percent at each of `RANKS` by the protocol."""
  # The configuration of the run keeps its ranks.
  config = copy.deepcopy(run.config.evaluation)
  config.ranks = RANKS
  evaluate = evaluator.make(
    config,
    (run.target(target),),
    run.model,
    run.transforms,
    placement.make_mesh(run.config.execution.devices or None),
  )
  metrics = evaluate({run.name: run.variables})[0]['metrics']
  return np.asarray([metrics[f'rank{rank}'] for rank in RANKS])


def draw(runs: Sequence[tuple[str, LoadedRun]], target: str = '') -> Any:
  """Draws one line per run.

  Args:
    runs: (label, run).
    target: name of the target to rank, '' for the first of each run.
  """
  figure = canvas.new(5.2, 3.8)
  axes = figure.subplots()
  for k, (label, run) in enumerate(runs):
    name = run.target(target).name
    values = curve(run, target)
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
