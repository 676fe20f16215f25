"""Metrics over the rounds of runs (DFH, figure 4)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.figures import canvas

SHOWN = {'mAP': 'mAP', 'rank1': 'rank-1', 'accuracy': 'accuracy'}

Curve = dict[int, float]


def over_rounds(evaluation: Sequence[dict[str, Any]], metric: str) -> Curve:
  """Returns a metric by round, the mean over targets and models.

  If the server has models, personal models are left out.

  Args:
    evaluation: as in results.json.
    metric: its name.
  """
  served = [e for e in evaluation if not e['model'].startswith('client:')]
  values: dict[int, list[float]] = {}
  for entry in served or evaluation:
    if metric in entry['metrics']:
      values.setdefault(entry['round'], []).append(entry['metrics'][metric])
  return {round_: float(np.mean(values[round_])) for round_ in sorted(values)}


def draw(runs: Sequence[tuple[str, dict[str, Any]]], target: str = '') -> Any:
  """Draws a panel per metric and a line per run.

  Args:
    runs: (label, results.json).
    target: target to show, '' for the mean over all.

  Raises:
    ConfigError: for a target that no run was tested on.
  """
  tests = {
    label: [e for e in found['evaluation'] if target in ('', e['target'])]
    for label, found in runs
  }
  names = sorted({e['target'] for _, r in runs for e in r['evaluation']})
  if not any(tests.values()):
    raise errors.ConfigError(
      f'no evaluation of {target or "any target"!r}',
      '--target',
      f'there are {", ".join(names) or "none"}',
    )
  curves = {
    metric: {label: over_rounds(t, metric) for label, t in tests.items()}
    for metric in SHOWN
  }
  shown = [metric for metric, lines in curves.items() if any(lines.values())]
  where = target or ('mean of ' if len(names) > 1 else '') + ', '.join(names)
  figure, places = canvas.row(len(shown), 4.2, 3.4)
  figure.suptitle(f'Test on {where}', fontsize=10)
  for axes, metric in zip(places, shown, strict=True):
    for k, (label, line) in enumerate(curves[metric].items()):
      axes.plot(
        list(line),
        list(line.values()),
        label=label,
        color=canvas.COLOURS[k % len(canvas.COLOURS)],
        marker='osD^vPX*'[k % 8],
        markersize=4,
      )
    canvas.plain(axes)
    axes.set_xlabel('round')
    axes.set_ylabel(f'{SHOWN[metric]}, %')
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
  places[-1].legend(fontsize=8)
  return figure
