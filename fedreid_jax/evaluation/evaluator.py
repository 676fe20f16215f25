"""Evaluates the models of a run for `evaluation` in results.json."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedreid_jax import errors
from fedreid_jax.core import model_names, plugins, types
from fedreid_jax.data import validation
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation import evaluators, features, target_stats
from fedreid_jax.evaluation.features import Extractor, Model
from fedreid_jax.evaluation.options import Evaluation, protocol_of

# Features on the other side of the neck, and suffixes of their metrics.
OTHER_SIDE = {
  'embedding': ('feature', '_before_neck'),
  'feature': ('embedding', '_after_neck'),
}
# Results of the evaluator of a task beside its metrics: numbers of images, and
# the average precision of the queries of each trial.
COUNTS = ('queries', 'gallery', 'invalid_queries', 'ties')
PER_QUERY = 'per_query'

Entry = dict[str, Any]
# Average precision of the queries of a trial, NaN for one without a match.
Precision = Float[np.ndarray, ' Q']
PerQuery = dict[tuple[str, str], list[Precision]]  # by model and target
Seen = Callable[[str, Target, Float[np.ndarray, 'M D']], None]
Models = Mapping[str, types.Flat]
# Variables of a model, or of the models of an ensemble, for all images or each
# modality.
Members = Sequence[tuple[types.Flat, ...]]
# Models as they are tested: for all images, or for those of each modality.
Source = Callable[[Models], tuple[Models, ...]]


class Evaluator(NamedTuple):
  """An evaluator with its options.

  Attributes:
    evaluate: `(Model, Target) -> metrics`.
    every: number of evaluations of a run between those of this evaluator, see
      `options.Every`.
  """

  evaluate: Callable[[Model, Target], Mapping[str, Any]]
  every: int = 1

  def is_due(self, number: int | None) -> bool:
    """Returns whether it runs in an evaluation, by its number from 0.

    The number is None for the last evaluation of a run, and for one beside.
    """
    return number is None or (self.every > 0 and number % self.every == 0)


def load(
  name: str, task: str, options: Mapping[str, Any] | None = None
) -> Evaluator:
  """Loads an evaluator, a module of `evaluators` or a plug-in.

  `task` is the task of the targets, as in `data.task`; `options` are values of
  its `Options`, by default those of the class.

  Raises:
    ConfigError: for no module, no evaluator, or an evaluator of another task.
  """
  module = plugins.full_name(name, plugins.EVALUATOR, evaluators)
  found = plugins.imported(module, plugins.EVALUATOR)
  needed = getattr(found, 'TASK', 'retrieval')
  if needed != task:
    raise errors.ConfigError(
      f'{name!r} evaluates {needed}, and the targets are of {task}',
      plugins.EVALUATOR.field,
      'remove it from the list',
    )
  own = plugins.options_of(found, options or {})
  function = plugins.bound(found, plugins.EVALUATOR, own)
  return Evaluator(function, getattr(own, 'every', 1))


def make(
  config: Evaluation,
  targets: Sequence[Target],
  model,
  transforms,
  mesh,
  extra: Sequence[Evaluator] = (),
) -> Callable[..., list[Entry]]:
  """Builds `({name: variables}, source, per_query, seen, number) -> entries`.

  `source` re-estimates the batch-normalisation moments of models before they
  are tested (`source_stats`). Without it, models are tested with their running
  moments, or with those of the gallery of each target (`target_stats`).
  `per_query` receives the average precision of the queries of
  retrieval tests, trial by trial. `seen` is called with the name of a model, a
  target of retrieval and the ranked features `[M, D]`. `number` is that of
  `Evaluator.is_due`.

  Each model and target has an entry, an element of `evaluation` in results.json
  without its round. The model of a client is tested on its domain (`_own`), and
  an ensemble of these models on all targets.

  `config` is `config.evaluation`, and `extra` has evaluators in addition to the
  one of the target's task.
  """

  @functools.cache
  def extractor(feature: str) -> Extractor:
    return features.make_extractor(
      model,
      transforms.test,
      mesh,
      batch=config.batch,
      flip=config.flip,
      feature=feature,
    )

  @functools.cache
  def measure() -> target_stats.Measure:
    return target_stats.make_measure(model, transforms.test)

  def adapted(
    members: Members, target: Target
  ) -> tuple[Members, Int[np.ndarray, ' M'] | None]:
    if config.batch_stats not in target_stats.RULES:
      return members, None
    # These rules have one model for all modalities.
    found = [
      target_stats.adapt(measure(), own, target, config) for (own,) in members
    ]
    return [one.models for one in found], found[0].model_of

  def evaluate(
    models: Models,
    source: Source = lambda models: (models,),
    per_query: PerQuery | None = None,
    seen: Seen | None = None,
    number: int | None = None,
  ) -> list[Entry]:
    due = [one for one in extra if one.is_due(number)]
    entries = []
    for name, members in _members(config.ensemble, models, source):
      for target in _own(name, targets):
        own, model_of = adapted(members, target)
        views = {
          suffix: Model(config, own, extractor, feature, model_of)
          for suffix, feature in _sides(config).items()
        }
        entry: Entry = {'model': name} | _test(config, views, target, due)
        precision = entry.pop(PER_QUERY, None)
        if per_query is not None and precision is not None:
          per_query[name, target.name] = precision
        if seen is not None and target.task == 'retrieval':
          seen(name, target, views[''].features(target))
        entries.append(entry)
    return entries

  return evaluate


def _sides(config: Evaluation) -> dict[str, str]:
  """Features to test by the suffix of their metrics."""
  sides = {'': config.feature}
  if config.report_both_neck_features:
    other, suffix = OTHER_SIDE[config.feature]
    sides[suffix] = other
  return sides


def _members(
  kinds: Sequence[str], models: Models, source: Source
) -> Iterator[tuple[str, Members]]:
  """Yields the members, one or those of an ensemble, of every model."""
  # The average is taken before the moments are re-estimated, since averaged
  # parameters have other moments.
  averaged = features.ensembles(models, [k for k in kinds if k == 'average'])
  joined = [k for k in kinds if k != 'average']
  if averaged:
    models = {**models, **{k: own[0] for k, own in averaged.items()}}
  parts = [(part, features.ensembles(part, joined)) for part in source(models)]
  names = [name for name in models if name not in kinds]
  # One model after another, which a mapping may read on demand.
  for name in (*names, *kinds):
    own = [found.get(name) or [part[name]] for part, found in parts]
    yield name, list(zip(*own, strict=True))


def _test(
  config: Evaluation,
  views: Mapping[str, Model],
  target: Target,
  extra: Sequence[Evaluator],
) -> Entry:
  """Tests a model on a target, each view by the suffix of its metrics."""
  ranked = target.task == 'retrieval'
  protocol, distance = target.protocol, ''
  if ranked:
    protocol, _ = protocol_of(config, target.protocol)
    by_camera = f'+{config.camera_norm} by camera' if config.camera_norm else ''
    distance = config.metric + by_camera + ('+rerank' if config.rerank else '')
  main = load(target.task, target.task)
  metrics: dict[str, float] = {}
  apart: dict[str, Any] = {}
  for suffix, model in views.items():
    # Class scores come after the neck, so they do not depend on the side.
    if suffix and not ranked:
      continue
    for one in (main, *extra):
      found = dict(one.evaluate(model, target))
      # Counts of the first evaluator and the first side take precedence.
      own = {k: found.pop(k) for k in (*COUNTS, PER_QUERY) if k in found}
      apart = own | apart
      _add(metrics, {f'{name}{suffix}': x for name, x in found.items()})
  return {
    'target': target.name,
    'protocol': protocol,
    'direction': target.direction,
    'distance': distance,
    'trials': len(target.trials),
    'query': target.query,
    'metrics': metrics,
  } | apart


def _add(metrics: dict[str, float], found: Mapping[str, Any]) -> None:
  """Adds metrics as numbers of JSON, and refuses a second one of one name."""
  if twice := metrics.keys() & found.keys():
    raise errors.ConfigError(
      f'two evaluators report {min(twice)!r}',
      plugins.EVALUATOR.field,
      'rename the metric of the plug-in, or remove one of the two',
    )
  metrics |= {
    name: value if isinstance(value, int) else float(value)
    for name, value in found.items()
  }


def _own(model: str, targets: Sequence[Target]) -> Sequence[Target]:
  """The tests of a client's model; other models have all.

  They are the target of its domain and the held-out persons of its domain. If
  its domain is no target, they are all targets, and all held-out persons if its
  domain has none.
  """
  client = model_names.client_of(model)
  if not client:
    return targets
  domain = client.partition('.')[0]
  tests = [t for t in targets if validation.is_validation(t.name)]
  rest = [t for t in targets if not validation.is_validation(t.name)]
  held = [t for t in tests if t.name == f'{validation.NAME}{domain}']
  if own := [t for t in rest if t.name == domain]:
    return [*own, *held]
  return [*rest, *(held or tests)]
