"""Draws effects of methods, and metrics by field of a sweep or by target."""

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.papers.effects import Effect
from fedreid_jax.apps.papers.report import Line
from fedreid_jax.core import model_names
from fedreid_jax.figures import canvas
from fedreid_jax.figures.curves import SHOWN

_YES, _NO, _OPEN = (canvas.RIGHT, 'o'), (canvas.WRONG, 'X'), ('0.4', 's')
_MARKS = {
  'supported': _YES,
  'not supported': _NO,
  'higher': _YES,
  'lower': _NO,
  'not resolved': _OPEN,
}


class Bar(NamedTuple):
  """One effect with its interval."""

  text: str
  found: Effect
  verdict: str  # a key of `_MARKS`
  margin: float = 0.0  # half width of a band around zero, mAP; 0: none


def draw_effects(lines: Sequence[Bar], axis: str) -> Any:
  """Draws each effect with its interval; `axis` is a label with a unit."""
  figure = canvas.new(7.5, 1.2 + 0.32 * len(lines))
  axes = figure.subplots()
  _effects(axes, lines)
  _legend(figure, [axes])
  axes.set_xlabel(f'{axis}, 95 % interval')
  return figure


def draw_groups(groups: Mapping[str, Sequence[Bar]], axis: str) -> Any:
  """Draws a panel of effects for each group, each of its own scale.

  A large loss in one group would make the intervals of others unreadable.
  """
  most = max(map(len, groups.values()))
  figure, panels = canvas.table(1, len(groups), 3.4, 1.4 + 0.3 * most)
  for axes, (name, lines) in zip(panels[0], groups.items(), strict=True):
    _effects(axes, lines)
    axes.set_title(name, fontsize=10)
    axes.set_xlabel(f'{axis}, 95 % interval', fontsize=8)
  _legend(figure, panels[0])
  return figure


def _effects(axes: Any, lines: Sequence[Bar]) -> None:
  # The axis points upwards, so the first line is drawn last, at the top.
  for k, one in enumerate(reversed(lines)):
    colour, mark = _MARKS[one.verdict]
    low, high = one.found.mean - one.found.low, one.found.high - one.found.mean
    axes.errorbar(
      one.found.mean,
      k,
      # Matplotlib refuses negative lengths, and a percentile of a bootstrap may
      # lie beyond the mean.
      xerr=[[max(low, 0.0)], [max(high, 0.0)]],
      fmt=mark,
      color=colour,
      capsize=3,
      label=one.verdict,
    )
    if one.margin:
      band = -one.margin, one.margin
      axes.fill_betweenx([k - 0.4, k + 0.4], *band, color='0.92')
  axes.axvline(0.0, color='0.3', linewidth=1)
  canvas.plain(axes)
  axes.set_yticks(range(len(lines)), [one.text for one in reversed(lines)])
  axes.set_ylim(-0.6, len(lines) - 0.4)
  axes.tick_params(axis='y', labelsize=7)


def _legend(figure: Any, panels: Iterable[Any]) -> None:
  """Adds a legend with one entry per verdict: every line has a label."""
  drawn: dict[str, Any] = {}
  for axes in panels:
    handles, labels = axes.get_legend_handles_labels()
    drawn |= dict(zip(labels, handles, strict=True))
  figure.legend(
    drawn.values(),
    drawn.keys(),
    loc='outside upper center',
    ncols=3,
    fontsize=7,
  )


def write_effects(lines: Sequence[Bar], path: Path, axis: str) -> None:
  """Writes the picture; without effects it writes nothing."""
  if lines:
    canvas.save(draw_effects(lines, axis), path)


def write_groups(
  groups: Mapping[str, Sequence[Bar]], path: Path, axis: str
) -> None:
  """Writes the picture of groups; without effects it writes nothing."""
  if groups:
    canvas.save(draw_groups(groups, axis), path)


class Series(NamedTuple):
  """The points of one line."""

  label: str  # method, target and other fields that differ
  points: dict[str, Line]  # results by value of the field, as text


def choose(lines: Sequence[Line], target: str, model: str) -> list[Line]:
  """The results of the last round of one model.

  Raises:
    ConfigError: if there are no such results, or no field has two values.
  """
  model = model or model_names.GLOBAL
  found = [
    line
    for line in lines
    if line.kind == 'last'
    and line.model == model
    and target in ('', line.target)
  ]
  if not found:
    there = sorted({f'{line.model} on {line.target}' for line in lines})
    raise errors.ConfigError(
      f'no results of {model} on {target or "any target"}',
      '--workdir',
      f'there are {", ".join(there) or "none"}',
    )
  if not varied(found):
    raise errors.ConfigError(
      'no field has two values in the finished runs',
      '--workdir',
      'give the work directory of a sweep of a field, and finish its runs',
    )
  return found


def varied(lines: Sequence[Line]) -> list[str]:
  """The fields that have several values; `A+B` are joined fields."""
  fields = dict.fromkeys(f for line in lines for f in line.factors)
  several = [f for f in fields if len({_value(x, f) for x in lines}) > 1]
  # No two points differ in one field only: the fields change together, as
  # epochs and rounds of a constant product do.
  if several and not any(any(series(lines, f)) for f in several):
    return ['+'.join(several)]
  return several


def series(lines: Sequence[Line], field: str) -> Iterator[Series]:
  """Yields the lines of the panel of a field, those with two points or more."""
  own = field.split('+')
  groups: dict[tuple[str, ...], dict[str, Line]] = {}
  for line in lines:
    others = (f'{k}={v}' for k, v in line.factors.items() if k not in own)
    key = (_method(line), line.target, *others)
    groups.setdefault(key, {})[_value(line, field)] = line
  kept = {key: points for key, points in groups.items() if len(points) > 1}
  parts = list(zip(*kept, strict=True))
  # A label has the parts in which lines differ. The values of other fields are
  # shown for a single line, too.
  named = [len(set(part)) > 1 or '=' in part[0] for part in parts]
  for key, points in kept.items():
    words = itertools.compress(key, named)
    yield Series(', '.join(words), _in_order(points))


def draw_sweep(lines: Sequence[Line], target: str = '', model: str = '') -> Any:
  """Draws a column of panels per field and a row per metric.

  A line joins runs that differ in one field only: a sweep that varies one field
  at a time has one line in each panel, and a full grid one for each value of
  the other fields. The band is one sample standard deviation of the runs of a
  point to either side (L2RW, figure 4). An empty target stands for all, an
  empty model for the server's.

  Raises:
    ConfigError: if no field has several values.
  """
  kept = choose(lines, target, model)
  fields = varied(kept)
  shown = [m for m in SHOWN if any(m in line.numbers for line in kept)]
  figure, panels = canvas.table(len(shown), len(fields), 4.2, 2.9)
  targets = ', '.join(dict.fromkeys(line.target for line in kept))
  runs = max(line.samples for line in kept)
  words = [f'Test on {targets}']
  if runs > 1:
    words.append(f'band: ± sample standard deviation of {runs} runs')
  if any(line.samples < runs for line in kept):
    words.append('hollow: fewer runs')
  figure.suptitle('; '.join(words), fontsize=10)
  for row, metric in zip(panels, shown, strict=True):
    for axes, field in zip(row, fields, strict=True):
      _panel(axes, list(series(kept, field)), metric, runs)
      axes.set_xlabel(field)
      axes.set_ylabel(f'{SHOWN[metric]}, %')
  return figure


def draw_bars(lines: Sequence[Line]) -> Any:
  """Draws a panel per metric, with a group of bars per target.

  A bar is the last round of a label, and its error bar one sample standard
  deviation of its runs to either side.

  Raises:
    ConfigError: if there are no results.
  """
  kept = [line for line in lines if line.kind == 'last']
  shown = [m for m in SHOWN if any(m in line.numbers for line in kept)]
  if not shown:
    raise errors.ConfigError('no results of a run', 'bars', 'finish a run')
  labels = list(dict.fromkeys(line.label for line in kept))
  targets = list(dict.fromkeys(line.target for line in kept))
  wide = max(4.2, 0.25 * len(targets) * (len(labels) + 1))
  figure, panels = canvas.table(len(shown), 1, wide, 2.9)
  width = 0.8 / len(labels)
  for axes, metric in zip(panels[:, 0], shown, strict=True):
    for k, label in enumerate(labels):
      own = [x for x in kept if x.label == label and metric in x.numbers]
      places = [targets.index(x.target) - 0.4 + (k + 0.5) * width for x in own]
      axes.bar(
        places,
        [x.numbers[metric] for x in own],
        width,
        yerr=[x.numbers.get(f'{metric} std', 0.0) for x in own],
        label=label,
        color=canvas.COLOURS[k % len(canvas.COLOURS)],
      )
    canvas.plain(axes)
    axes.set_xticks(range(len(targets)), targets)
    axes.set_ylabel(f'{SHOWN[metric]}, %')
  drawn = panels[0, 0].get_legend_handles_labels()
  figure.legend(*drawn, loc='outside upper center', ncols=3, fontsize=8)
  return figure


def _panel(axes: Any, drawn: Sequence[Series], metric: str, runs: int) -> None:
  values = list(dict.fromkeys(v for one in drawn for v in one.points))
  numbers = {v: _number(v) for v in values}
  # Words and tuples have no place on an axis: they are spread evenly.
  if None in numbers.values():
    numbers = {v: float(k) for k, v in enumerate(values)}
    axes.set_xticks(list(numbers.values()), values)
  for k, one in enumerate(drawn):
    known = {v: x for v, x in one.points.items() if metric in x.numbers}
    places = np.array([numbers[v] for v in known])
    means = np.array([x.numbers[metric] for x in known.values()])
    spread = np.array(
      [x.numbers.get(f'{metric} std', 0.0) for x in known.values()]
    )
    colour = canvas.COLOURS[k % len(canvas.COLOURS)]
    mark = 'osD^vPX*'[k % 8]
    axes.plot(
      places, means, label=one.label, color=colour, marker=mark, markersize=4
    )
    # Hollow: a sweep that is not finished has points with fewer runs than
    # others.
    few = np.array([x.samples < runs for x in known.values()], bool)
    hollow = {'c': 'white', 'marker': mark, 'edgecolors': colour}
    axes.scatter(places[few], means[few], s=24, zorder=3, **hollow)
    band = {'color': colour, 'alpha': 0.2, 'linewidth': 0}
    axes.fill_between(places, means - spread, means + spread, **band)
  canvas.plain(axes)
  if any(one.label for one in drawn):
    axes.legend(fontsize=8)


def _method(line: Line) -> str:
  # The part of a label before the fields and values.
  pairs = ' '.join(f'{k}={v}' for k, v in line.factors.items())
  return line.label.removesuffix(pairs).strip()


def _value(line: Line, field: str) -> str:
  return ', '.join(line.factors.get(part, '') for part in field.split('+'))


def _in_order(points: dict[str, Line]) -> dict[str, Line]:
  # Only if all values are numbers: words stay in the order of the sweep.
  numbers = {value: _number(value) for value in points}
  if None in numbers.values():
    return points
  return {v: points[v] for v in sorted(points, key=lambda v: numbers[v] or 0.0)}


def _number(text: str) -> float | None:
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return None
  # True and False would be 1 and 0.
  whole = isinstance(value, int | float) and not isinstance(value, bool)
  return float(value) if whole else None
