"""Metrics over the rounds of runs: of tests (DFH, figure 4) and of training."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import model_names
from fedreid_jax.figures import canvas

SHOWN = {'mAP': 'mAP', 'rank1': 'rank-1', 'accuracy': 'accuracy'}
MOST = 16  # clients with a line of their own

Curve = dict[int, float]


def over_rounds(evaluation: Sequence[dict[str, Any]], metric: str) -> Curve:
  """A metric by round, the mean over targets and models.

  Personal models count only if the server has no model.
  """
  served = [e for e in evaluation if not model_names.client_of(e['model'])]
  values: dict[int, list[float]] = {}
  for entry in served or evaluation:
    if metric in entry['metrics']:
      values.setdefault(entry['round'], []).append(entry['metrics'][metric])
  return {round_: float(np.mean(values[round_])) for round_ in sorted(values)}


def mean_and_spread(curves: Sequence[Curve]) -> tuple[Curve, Curve]:
  """Mean and sample standard deviation in common rounds; 0 for one curve."""
  rounds = sorted(set(curves[0]).intersection(*curves[1:]))
  values = {r: [curve[r] for curve in curves] for r in rounds}
  mean = {r: float(np.mean(x)) for r, x in values.items()}
  if len(curves) == 1:
    return mean, dict.fromkeys(rounds, 0.0)
  return mean, {r: float(np.std(x, ddof=1)) for r, x in values.items()}


def has_lines(evaluation: Sequence[dict[str, Any]]) -> bool:
  """Returns whether `draw` can show anything of these tests."""
  return any(e['metrics'].keys() & SHOWN.keys() for e in evaluation)


def draw(
  runs: Sequence[tuple[str, dict[str, Any]]],
  target: str = '',
  apart: bool = False,
) -> Any:
  """Draws a panel per metric and a line per label.

  Runs with the same label differ in their seeds. They are drawn as one line of
  the mean with a band of one sample standard deviation on either side.

  Args:
    runs: (label, results.json).
    target: '' for the mean over all targets.
    apart: draws a row of panels per target.

  Raises:
    ConfigError: for a target on which no run was tested, or tests without any
      metric of `SHOWN`.
  """
  names = sorted({e['target'] for _, r in runs for e in r['evaluation']})
  if not names or target not in ('', *names):
    raise errors.ConfigError(
      f'no evaluation of {target or "any target"!r}',
      '--target',
      f'there are {", ".join(names) or "none"}',
    )
  rows = {name: _lines(runs, name) for name in (names if apart else [target])}
  shown = [m for m in SHOWN if any(lines[m] for lines in rows.values())]
  if not shown:
    raise errors.ConfigError(
      'the tests have no metric with a curve',
      'results.json',
      f'evaluate one of {", ".join(SHOWN)}',
    )
  most = max(
    len(found)
    for lines in rows.values()
    for of in lines.values()
    for found in of.values()
  )
  where = target or ('mean of ' if len(names) > 1 else '') + ', '.join(names)
  if apart:
    where = errors.counted(len(names), 'target')
  band = f'; band: ± sample standard deviation of {most} runs'
  figure, panels = canvas.table(len(rows), len(shown), 4.2, 3.4)
  figure.suptitle(f'Test on {where}{band if most > 1 else ""}', fontsize=10)
  for places, (name, lines) in zip(panels, rows.items(), strict=True):
    for axes, metric in zip(places, shown, strict=True):
      _test_panel(axes, lines[metric])
      on = f' on {name}' if apart else ''
      axes.set_ylabel(f'{SHOWN[metric]}{on}, %')
    places[-1].legend(fontsize=8)
  return figure


def _lines(
  runs: Sequence[tuple[str, dict[str, Any]]], target: str
) -> dict[str, dict[str, list[Curve]]]:
  """The curves of each metric and label on a target, '' for the mean."""
  lines: dict[str, dict[str, list[Curve]]] = {metric: {} for metric in SHOWN}
  for metric, (label, found) in itertools.product(SHOWN, runs):
    test = [e for e in found['evaluation'] if target in ('', e['target'])]
    if curve := over_rounds(test, metric):
      lines[metric].setdefault(label, []).append(curve)
  return lines


def of_clients(
  rounds: Sequence[dict[str, Any]], metric: str
) -> dict[str, Curve]:
  """A metric of every client that took part, by round, from metrics.jsonl."""
  found: dict[str, Curve] = {}
  for line in rounds:
    # Lines of earlier versions have no clients.
    for client, values in line.get('by_client', {}).items():
      if metric in values:
        found.setdefault(client, {})[line['round']] = values[metric]
  return dict(sorted(found.items()))


def draw_losses(
  labelled: Sequence[tuple[str, Sequence[Sequence[dict[str, Any]]]]],
) -> Any:
  """Draws a panel per label: the mean with a band over seeds, and the clients.

  An element is (label, lines of metrics.jsonl of each of its runs). The lines
  of the clients are those of the first run.
  """
  figure, places = canvas.row(len(labelled), 5.2, 3.4)
  for axes, (label, runs) in zip(places, labelled, strict=True):
    clients = of_clients(runs[0], 'loss')
    for k, (client, curve) in enumerate([*clients.items()][:MOST]):
      axes.plot(
        list(curve),
        list(curve.values()),
        color=canvas.COLOURS[(k + 1) % len(canvas.COLOURS)],
        linestyle=('--', ':', '-.')[k % 3],
        linewidth=1,
        label=client,
      )
    means = [
      {r['round']: r['loss'] for r in run if 'loss' in r} for run in runs
    ]
    _line_with_band(axes, means, 0.15, color='black', linewidth=2, label='mean')
    _finish(axes)
    axes.set_title(label, fontsize=10)
    axes.set_ylabel('loss')
    axes.legend(fontsize=7, ncols=2)
  return figure


def _test_panel(axes: Any, lines: Mapping[str, Sequence[Curve]]) -> None:
  for k, (label, curves) in enumerate(lines.items()):
    _line_with_band(
      axes,
      curves,
      0.2,
      label=label,
      color=canvas.COLOURS[k % len(canvas.COLOURS)],
      linestyle=('-', '--', '-.', ':')[k % 4],
      marker='osD^vPX*'[k % 8],
      markersize=4,
    )
  _finish(axes)
  # Limits that fit a flat curve would cut its markers.
  axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def _line_with_band(
  axes: Any, curves: Sequence[Curve], alpha: float, **style: Any
) -> None:
  mean, spread = mean_and_spread(curves)
  axes.plot(list(mean), list(mean.values()), **style)
  axes.fill_between(
    list(mean),
    [mean[r] - spread[r] for r in mean],
    [mean[r] + spread[r] for r in mean],
    color=style['color'],
    alpha=alpha,
    linewidth=0,
  )


def _finish(axes: Any) -> None:
  canvas.plain(axes)
  axes.set_xlabel('round')
  axes.xaxis.get_major_locator().set_params(integer=True)
