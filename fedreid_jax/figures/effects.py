"""Effects of claims with their intervals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedreid_jax.figures import canvas

_MARKS = {'supported': 'o', 'not supported': 'X', 'not resolved': 's'}


def draw(judged: Sequence[Any]) -> Any:
  """Draws a line per claim: the effect, its interval and the verdict.

  Args:
    judged: `sweeps.study.Judged` of claims with finished runs.
  """
  figure = canvas.new(7.5, 1.2 + 0.32 * len(judged))
  axes = figure.subplots()
  for k, one in enumerate(reversed(judged)):
    colour = {'supported': canvas.RIGHT, 'not supported': canvas.WRONG}.get(
      one.verdict, '0.4'
    )
    low, high = one.found.mean - one.found.low, one.found.high - one.found.mean
    axes.errorbar(
      one.found.mean,
      k,
      xerr=[[max(low, 0.0)], [max(high, 0.0)]],
      fmt=_MARKS[one.verdict],
      color=colour,
      capsize=3,
      label=one.verdict,
    )
    if one.claim.claimed == 'equal':
      margin = one.claim.margin
      axes.fill_betweenx([k - 0.4, k + 0.4], -margin, margin, color='0.92')
  axes.axvline(0.0, color='0.3', linewidth=1)
  canvas.plain(axes)
  axes.set_yticks(
    range(len(judged)), [f'{j.claim.text}' for j in reversed(judged)]
  )
  axes.set_ylim(-0.6, len(judged) - 0.4)
  axes.tick_params(axis='y', labelsize=7)
  drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
  figure.legend(
    drawn.values(),
    drawn.keys(),
    loc='outside upper center',
    ncols=3,
    fontsize=7,
  )
  axes.set_xlabel('difference in mAP, 95 % interval')
  return figure


def write(judged: Sequence[Any], path: Path) -> None:
  """Writes the picture of the claims that have an effect, if any has."""
  known = [one for one in judged if one.found]
  if known:
    canvas.save(draw(known), path)
