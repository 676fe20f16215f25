"""Metrics over the rounds of runs (DFH, figure 4)."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.figures import canvas

SHOWN = {'mAP': 'mAP', 'rank1': 'rank-1', 'accuracy': 'accuracy'}

Curve = dict[int, float]


def over_rounds(evaluation: Sequence[dict[str, Any]], metric: str) -> Curve:
  """Returns a metric by round, the mean over targets and models.

  Personal models count only if the server has no model.
  """
  served = [e for e in evaluation if not e['model'].startswith('client:')]
  values: dict[int, list[float]] = {}
  for entry in served or evaluation:
    if metric in entry['metrics']:
      values.setdefault(entry['round'], []).append(entry['metrics'][metric])
  return {round_: float(np.mean(values[round_])) for round_ in sorted(values)}


def mean_and_spread(curves: Sequence[Curve]) -> tuple[Curve, Curve]:
  """Returns mean and sample standard deviation by round; 0 for a single curve.

  The rounds are those that all curves have.
  """
  rounds = sorted(set(curves[0]).intersection(*curves[1:]))
  values = {r: [curve[r] for curve in curves] for r in rounds}
  mean = {r: float(np.mean(x)) for r, x in values.items()}
  if len(curves) == 1:
    return mean, dict.fromkeys(rounds, 0.0)
  return mean, {r: float(np.std(x, ddof=1)) for r, x in values.items()}


def draw(runs: Sequence[tuple[str, dict[str, Any]]], target: str = '') -> Any:
  """Draws a panel per metric and a line per label.

  Runs with the same label differ in their seeds. They are drawn as one line of
  the mean with a band of one sample standard deviation on either side.

  Args:
    runs: (label, results.json).
    target: target to show, '' for the mean over all.

  Raises:
    ConfigError: for a target on which no run was tested.
  """
  tests = [
    (label, [e for e in found['evaluation'] if target in ('', e['target'])])
    for label, found in runs
  ]
  names = sorted({e['target'] for _, r in runs for e in r['evaluation']})
  if not any(test for _, test in tests):
    raise errors.ConfigError(
      f'no evaluation of {target or "any target"!r}',
      '--target',
      f'there are {", ".join(names) or "none"}',
    )
  lines: dict[str, dict[str, list[Curve]]] = {metric: {} for metric in SHOWN}
  for metric, (label, test) in itertools.product(SHOWN, tests):
    if curve := over_rounds(test, metric):
      lines[metric].setdefault(label, []).append(curve)
  shown = [metric for metric in SHOWN if lines[metric]]
  most = max(len(found) for of in lines.values() for found in of.values())
  where = target or ('mean of ' if len(names) > 1 else '') + ', '.join(names)
  band = f'; band: ± sample standard deviation of {most} runs'
  figure, places = canvas.row(len(shown), 4.2, 3.4)
  figure.suptitle(f'Test on {where}{band if most > 1 else ""}', fontsize=10)
  for axes, metric in zip(places, shown, strict=True):
    _panel(axes, lines[metric])
    axes.set_ylabel(f'{SHOWN[metric]}, %')
  places[-1].legend(fontsize=8)
  return figure


def _panel(axes: Any, lines: Mapping[str, Sequence[Curve]]) -> None:
  for k, (label, curves) in enumerate(lines.items()):
    mean, spread = mean_and_spread(curves)
    colour = canvas.COLOURS[k % len(canvas.COLOURS)]
    axes.plot(
      list(mean),
      list(mean.values()),
      label=label,
      color=colour,
      linestyle=('-', '--', '-.', ':')[k % 4],
      marker='osD^vPX*'[k % 8],
      markersize=4,
    )
    axes.fill_between(
      list(mean),
      [mean[r] - spread[r] for r in mean],
      [mean[r] + spread[r] for r in mean],
      color=colour,
      alpha=0.2,
      linewidth=0,
    )
  canvas.plain(axes)
  axes.set_xlabel('round')
  axes.set_ylim(bottom=0)
  axes.xaxis.get_major_locator().set_params(integer=True)
