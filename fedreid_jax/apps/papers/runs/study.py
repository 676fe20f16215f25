"""Judges claims by their trials (docs/protocol.md)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax.apps.papers.claims.declare import Claim, Models
from fedreid_jax.apps.papers.runs import effects
from fedreid_jax.apps.papers.runs.trials import Trial
from fedreid_jax.training.files import atomic, recorder

# Average precision of the queries, `[Q]` in [0, 1] or NaN, by target.
Precision = dict[str, np.ndarray]


class Judged(NamedTuple):
  """A claim with the mean mAP of both arms and their difference.

  Attributes:
    claim: the claim.
    arm: mAP of the arm in percent, NaN without finished runs.
    base: mAP of its base in percent, NaN without finished runs.
    found: the effect; None without a finished seed.
    verdict: result of `effects.verdict`.
  """

  claim: Claim
  arm: float
  base: float
  found: effects.Effect | None
  verdict: effects.Verdict


def precision(workdir: Path, models: Models) -> Precision:
  """Returns the average precision of the queries of a run by target.

  Raises:
    FileNotFoundError: if the run ranked no queries.
    KeyError: if the run has no such model.
    ValueError: for 'best_client' if no model of a client was tested.
  """
  with np.load(workdir / recorder.QUERIES) as saved:
    found: dict[str, dict[str, list[np.ndarray]]] = {}
    for key in saved.files:
      model, target, _ = key.split('/')
      found.setdefault(model, {}).setdefault(target, []).append(saved[key])
  joined = {
    model: {target: np.concatenate(own) for target, own in targets.items()}
    for model, targets in found.items()
  }
  if models in ('global', 'concat', 'average'):
    return joined[models]
  clients = [own for m, own in joined.items() if m.startswith('client:')]
  if models == 'best_client':
    return max(clients, key=_mean)
  # The mean over the clients per query, so that queries stay paired.
  return {
    target: np.mean([own[target] for own in clients if target in own], axis=0)
    for target in dict.fromkeys(t for own in clients for t in own)
  }


def judge(claim: Claim, trials: Sequence[Trial]) -> Judged:
  """Judges a claim by trials, all of whose runs have ended."""
  differences, means = [], []
  for trial in trials:
    pairs = trial.runs.items()
    sides: tuple[Precision, Precision] = {}, {}
    for route, pair in pairs:
      for side, cell, arm in zip(
        sides, pair, (claim.arm, claim.base), strict=True
      ):
        own = precision(cell.workdir, arm.models)
        side.update({f'{route}: {target}': x for target, x in own.items()})
    # Clients may be tested on fewer targets than the global model.
    common = sides[0].keys() & sides[1].keys()
    differences.append({t: sides[0][t] - sides[1][t] for t in common})
    means.append([_mean({t: side[t] for t in common}) for side in sides])
  minus = {
    name
    for own in differences[:1]
    for name in own
    if name.rpartition(': ')[2] in claim.minus
  }
  found = effects.effect(differences, minus) if differences else None
  arm, base = 100.0 * np.mean(means, axis=0) if means else (np.nan, np.nan)
  return Judged(
    claim,
    float(arm),
    float(base),
    found,
    effects.verdict(found, claim.claimed, claim.margin),
  )


def _mean(own: Precision) -> float:
  # Targets have equal weights, whatever their numbers of queries.
  return float(np.mean([np.nanmean(x) for x in own.values()]))


def write(path: Path, judged: Sequence[Judged]) -> str:
  """Writes `PATH.json` and `PATH.md`, and returns the Markdown."""
  recorder.write_json(path.with_suffix('.json'), [_row(j) for j in judged])
  lines = [
    '| claim | source | published | base | arm | effect, mAP | detectable | '
    'verdict |',
    '|---|---|---|---|---|---|---|---|',
  ]
  for one in judged:
    claim, found = one.claim, one.found
    numbers = [f'{one.base:.1f}', f'{one.arm:.1f}'] if found else ['', '']
    numbers += (
      [
        f'{found.mean:+.1f} [{found.low:+.1f}, {found.high:+.1f}]',
        f'{found.detectable:.1f}',
      ]
      if found
      else ['', '']
    )
    cells_ = (claim.text, claim.source, claim.published, *numbers, one.verdict)
    lines.append(f'| {" | ".join(cells_)} |')
  text = '\n'.join(lines) + '\n'
  atomic.write_text(path.with_suffix('.md'), text)
  return text


def _row(one: Judged) -> dict[str, Any]:
  row: dict[str, Any] = {
    'claim': one.claim.name,
    'source': one.claim.source,
    'text': one.claim.text,
    'published': one.claim.published,
    'claimed': one.claim.claimed,
    'margin': one.claim.margin,
    'verdict': one.verdict,
  }
  if one.found:
    row |= {'arm': one.arm, 'base': one.base} | one.found._asdict()
  return row
