"""Evaluates the models of a run for `evaluation` in results.json."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation import (
  classification,
  ensembles,
  evaluate_retrieval,
  features,
  modality_gap,
  protocols,
  ranking,
  trials,
)

# Features on the other side of the neck, and suffixes of their metrics.
OTHER_SIDE = {
  'embedding': ('feature', '_before_neck'),
  'feature': ('embedding', '_after_neck'),
}
COUNTS = ('queries', 'gallery', 'invalid_queries', 'ties')

Entry = dict[str, Any]
# Average precision of the queries of a trial, NaN for one without a match.
Precision = Float[np.ndarray, ' Q']
PerQuery = dict[tuple[str, str], list[Precision]]  # by model and target
Seen = Callable[[str, Target, Float[np.ndarray, 'M D']], None]
Gaps = dict[tuple[str, str], modality_gap.Gap]  # by model and target
Models = dict[str, types.Flat]
# Models as they are tested: for all images, or for those of each modality.
Source = Callable[[Models], tuple[Models, ...]]


class Extractors(NamedTuple):
  """Functions `(variables, images, modalities) -> features [M, D]`.

  Attributes:
    ranked: of the features that `config.feature` selects.
    other: of those on the other side of the neck.
    logits: of the classifier.
  """

  ranked: Callable[..., Any]
  other: Callable[..., Any]
  logits: Callable[..., Any]


def make(
  config, targets, model, transforms, mesh
) -> Callable[..., list[Entry]]:
  """Builds `({name: variables}, source, per_query, gaps, seen) -> entries`.

  There is an entry for each model and target.

  `source` maps models to models before they are tested; it re-estimates their
  batch-normalisation moments (`source_stats`). Without it, models are tested
  with their running moments. `per_query` receives the average precision of
  the queries of retrieval tests, trial by trial, and `gaps` the distances
  between the modalities of targets that have both. `seen` is called with each
  model's name, target and ranked features `[M, D]` of a retrieval test.

  An entry is one element of `evaluation` in results.json, without its round. A
  client's own model is tested on its own domain if that is a target, otherwise
  on all targets; an ensemble of these models is tested on all targets.

  Args:
    config: `config.evaluation`.
    targets: tests, of retrieval or of classification.
    model: the network.
    transforms: of images; the test transform is used.
    mesh: devices.

  With `config.report_both_neck_features` the metrics of an entry include those
  of the other side of the neck: `NAME_before_neck`, `NAME_after_neck`.
  """
  extractor = functools.partial(
    features.make_extractor,
    model,
    transforms.test,
    mesh,
    batch=config.batch,
    flip=config.flip,
  )
  other, _ = OTHER_SIDE[config.feature]
  extract = Extractors(
    *(
      extractor(feature=feature)
      for feature in (config.feature, other, 'logits')
    )
  )

  def evaluate(
    models: Models,
    source: Source = lambda models: (models,),
    per_query: PerQuery | None = None,
    gaps: Gaps | None = None,
    seen: Seen | None = None,
  ) -> list[Entry]:
    entries = []
    for name, own in _members(config.ensemble, models, source).items():
      for target in _own(name, targets):
        keep = functools.partial(seen, name, target) if seen else None
        entry, precision, gap = _test(
          config, extract, own, target, gaps is not None, keep
        )
        entries.append({'model': name} | entry)
        if per_query is not None and precision:
          per_query[name, target.name] = precision
        if gaps is not None and gap:
          gaps[name, target.name] = gap
    return entries

  return evaluate


def _members(
  kinds: Sequence[str], models: Models, source: Source
) -> dict[str, list[tuple[types.Flat, ...]]]:
  """Returns the members of every model and ensemble.

  The features of several members are concatenated. A member is the variables
  for all images, or those for each modality.
  """
  # Averaged parameters have other moments.
  averaged = ensembles.make(models, [k for k in kinds if k == 'average'])
  joined = [k for k in kinds if k != 'average']
  parts: list[dict[str, list[types.Flat]]] = []
  for part in source(models | {k: own[0] for k, own in averaged.items()}):
    alone = {name: [variables] for name, variables in part.items()}
    parts.append(alone | ensembles.make(part, joined))
  return {
    name: list(zip(*(part[name] for part in parts), strict=True))
    for name in (*models, *kinds)
  }


def _test(
  config,
  extract: Extractors,
  members: list[tuple[types.Flat, ...]],
  target: Target,
  measures_gap: bool,
  keep: Callable[[Float[np.ndarray, 'M D']], None] | None,
) -> tuple[Entry, list[Precision], modality_gap.Gap | None]:
  """Tests the features of models in a row on one target."""
  images, modalities = target.images.images(), target.images.modalities
  if target.protocol == classification.PROTOCOL:
    if len(members) > 1:
      raise errors.ConfigError(
        'concatenated features have no classifier',
        'evaluation.ensemble',
        "classify with 'average'",
      )
    logits = features.of_each(extract.logits, members[0], images, modalities)
    return _classified(target, logits), [], None

  def joined(one) -> Float[np.ndarray, 'M D']:
    found = [features.of_each(one, own, images, modalities) for own in members]
    return ensembles.join(found, config.ensemble_norm)

  found = joined(extract.ranked)
  entry, precision = _ranked(config, target, found)
  if keep is not None:
    keep(found)
  if config.report_both_neck_features:
    _, side = OTHER_SIDE[config.feature]
    other, _ = _ranked(config, target, joined(extract.other))
    for name, value in other['metrics'].items():
      entry['metrics'][name + side] = value
  if not measures_gap:
    return entry, precision, None
  unit = config.metric == 'cosine'
  people = target.images.identities
  gap = modality_gap.measure(found, people, modalities, unit)
  return entry, precision, gap


def _ranked(
  config, target: Target, found: Float[np.ndarray, 'M D']
) -> tuple[Entry, list[Precision]]:
  """Ranks the features of a target's images, trial by trial."""
  own = target.images
  protocol = config.protocol or target.protocol or 'market'
  rules = protocols.get(protocol)
  if config.precision:
    rules = rules._replace(precision=config.precision)
  scores: list[ranking.Scores] = []
  results = [
    evaluate_retrieval(
      found[trial.query],
      found[trial.gallery],
      own.identities[trial.query],
      own.identities[trial.gallery],
      own.cameras[trial.query],
      own.cameras[trial.gallery],
      metric=config.metric,
      protocol=rules,
      ranks=tuple(config.ranks),
      rerank=config.rerank,
      keep=scores.append,
    )
    for trial in target.trials
  ]
  summary = results[0] if len(results) == 1 else trials.summarise(results)
  counts = {k: max(r[k] for r in results) for k in COUNTS}
  distance = config.metric + ('+rerank' if config.rerank else '')
  precision = [
    np.where(s.valid, s.precision, np.nan).astype(np.float32) for s in scores
  ]
  return _entry(target, protocol, distance, summary, counts), precision


def _classified(target: Target, logits: Float[np.ndarray, 'M C']) -> Entry:
  """Compares the classes of highest score with the labels."""
  found = classification.evaluate_classification(
    logits, target.images.identities
  )
  counts = {k: found[k] for k in COUNTS}
  return _entry(target, target.protocol, '', found, counts)


def _entry(
  target: Target, protocol: str, distance: str, found, counts
) -> Entry:
  return {
    'target': target.name,
    'protocol': protocol,
    'direction': target.direction,
    'distance': distance,
    'trials': len(target.trials),
    'query': target.query,
    'metrics': {k: v for k, v in found.items() if k not in (*COUNTS, 'trials')},
  } | counts


def _own(model: str, targets):
  """Returns the targets of a model; a client's own domain by its name."""
  domain = model.removeprefix('client:').partition('.')[0]
  return [t for t in targets if t.name == domain] or targets
