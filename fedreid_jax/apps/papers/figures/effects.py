"""Draws effects of methods with their intervals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedreid_jax.figures import canvas

_YES, _NO, _OPEN = (canvas.RIGHT, 'o'), (canvas.WRONG, 'X'), ('0.4', 's')
_MARKS = {
  'supported': _YES,
  'not supported': _NO,
  'higher': _YES,
  'lower': _NO,
  'not resolved': _OPEN,
}


class Line(NamedTuple):
  """One effect.

  Attributes:
    text: label of the line.
    found: the effect, `apps.papers.runs.effects.Effect`.
    verdict: a key of `_MARKS`.
    margin: half of the width of a band around zero in mAP, 0 for no band.
  """

  text: str
  found: Any
  verdict: str
  margin: float


def draw(lines: Sequence[Line], axis: str) -> Any:
  """Draws each effect with its interval; `axis` is a label with a unit."""
  figure = canvas.new(7.5, 1.2 + 0.32 * len(lines))
  axes = figure.subplots()
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
  # One entry per verdict: every line has a label.
  drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
  figure.legend(
    drawn.values(),
    drawn.keys(),
    loc='outside upper center',
    ncols=3,
    fontsize=7,
  )
  axes.set_xlabel(f'{axis}, 95 % interval')
  return figure


def write(lines: Sequence[Line], path: Path, axis: str) -> None:
  """Writes the picture; without effects it writes nothing."""
  if lines:
    canvas.save(draw(lines, axis), path)
