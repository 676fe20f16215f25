"""Validation of a configuration: fields, values, and combinations of fields.

Combinations are checked with the components of the method, whose own rules are
in their modules (`method.rules`). No backend of JAX is started.
"""

import importlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from ml_collections import ConfigDict

from fedreid_jax import algorithms, errors
from fedreid_jax.config import configuration, parsing, schema
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import options, plugins
from fedreid_jax.evaluation.target_stats import RULES as ON_GALLERY
from fedreid_jax.method.component import Component, judges
from fedreid_jax.method.rules import DIVIDE_PERSONS, Given, Rule
from fedreid_jax.round import compose


def validate(config: ConfigDict | Config) -> Config:
  """Returns a configuration as typed values if it is valid.

  Raises:
    ConfigError: with the problem, the field and the remedy.
  """
  given = schema.complete(schema.editable(config).copy_and_resolve_references())
  found, parts = parsing.flatten(given), schema.named(given)
  known = schema.fields(parts)
  for name in sorted(found.keys() | known.keys()):
    if name not in known:
      hint = parsing.hint(name, known)
      raise errors.ConfigError('unknown field', name, hint)
    if name not in found:
      raise errors.ConfigError(
        'field is missing',
        name,
        'create the configuration with schema.default()',
      )
    options.check(name, known[name], found[name])
  frozen = configuration.frozen(given, schema.groups(parts))
  for wrong, where, what, fix in _rules(frozen):
    if wrong:
      raise errors.ConfigError(what, where, fix)
  return frozen


def _rules(c: Config) -> Iterator[Rule]:
  # The rules of the fields come first: the components, which are made for the
  # rules of the method, need valid options.
  for part in (
    *(_run, _availability, _data, _training, _tracklets),
    *(_augment, _evaluation, _method),
  ):
    yield from part(c)


def load_components(c: Config) -> tuple[Component, ...]:
  """Returns the components of a configuration's method, in order."""
  own = {plugins.group_of(name): arguments(c, name) for name in c.components}
  return compose.load(c.components, own, algorithms)


def is_private(c: Config) -> bool:
  """Whether a component of a configuration's method claims a guarantee."""
  return any(component.claim for component in load_components(c))


def arguments(c: Config, name: str) -> dict[str, Any]:
  """Returns the hyper-parameters of a component or a plug-in by its name."""
  own = c.options.get(plugins.group_of(name))
  return dict(vars(own)) if own else {}


def _method(c: Config) -> Iterator[Rule]:
  components = load_components(c)
  yield from _of_properties(c, components)
  for k, name in enumerate(c.components):
    full_name = plugins.full_name(name, plugins.COMPONENT, algorithms)
    module, group = importlib.import_module(full_name), plugins.group_of(name)
    if hasattr(module, 'rules'):
      others = (*components[:k], *components[k + 1 :])
      yield from module.rules(Given(group, c.options.get(group), c, others))


def _of_properties(
  c: Config, components: tuple[Component, ...]
) -> Iterator[Rule]:
  stale = any(component.max_staleness for component in components)
  yield (
    c.availability.in_flight > 0 and not stale,
    'availability.in_flight',
    f'{errors.counted(c.availability.in_flight, "client")} in flight with '
    f'{", ".join(c.components)}',
    'set it to 0, or add a component that uses stale uploads, as that of '
    'FedBuff',
  )
  judging = [x.name for x in components if judges(x)]
  yield (
    bool(judging) and not c.evaluation.validation,
    'evaluation.validation',
    f'no persons are held out, by which {", ".join(judging)} judges models',
    'set it above 0, such as 0.1',
  )
  clusters = any('pseudo_labels' in x.properties for x in components)
  yield (
    bool(c.data.unlabelled) and not clusters,
    'data.unlabelled',
    f'{", ".join(c.components)} trains on labels',
    'set it to (), or use configs/cluster_contrast.py',
  )
  single = [x.name for x in components if 'single_images' in x.properties]
  yield (
    c.local.frames > 1 and bool(single),
    'local.frames',
    f'{", ".join(single)} trains on single images, not on tracklets',
    'set it to 1',
  )
  alone = any('independent' in x.properties for x in components)
  yield (
    bool(c.evaluation.ensemble) and not alone,
    'evaluation.ensemble',
    'ensembles need models that are trained independently',
    'use configs/standalone.py',
  )


def _run(c: Config) -> Iterator[Rule]:
  yield (
    not c.name or '/' in c.name,
    'name',
    f'{c.name!r} is not a name',
    "give a word without '/'",
  )
  yield (
    not c.components,
    'components',
    'no component',
    'list one that selects the shared parameters, as that of FedPav',
  )
  yield (
    c.execution.deterministic and c.execution.width != 1,
    'execution.width',
    f'width {c.execution.width} is not deterministic',
    'set execution.deterministic=False',
  )
  yield (
    c.cohort == 'fixed' and c.cohort_max > 0,
    'cohort_max',
    'a cohort of a fixed size has no largest size',
    "set cohort to 'poisson'",
  )
  yield (
    len({*c.track}) < len(c.track),
    'track',
    'a tracker is listed twice',
    'list each once',
  )


def _availability(c: Config) -> Iterator[Rule]:
  given = c.availability
  yield (
    given.in_flight > 0 and (given.deadline_s > 0 or given.over_selection > 0),
    'availability.deadline_s',
    'without rounds there is no deadline and no over-selection',
    'set availability.deadline_s and availability.over_selection to 0',
  )
  yield (
    bool(given.file) and (given.mean < 1 or given.swing > 0),
    'availability.file',
    'a file and a probability of availability',
    'set availability.mean to 1 and availability.swing to 0',
  )
  yield (
    c.cohort == 'poisson' and not options.is_default(c.availability),
    'availability',
    'who is available breaks the independent sampling of cohort=poisson',
    "set cohort to 'fixed', or keep the defaults of availability",
  )


def _data(c: Config) -> Iterator[Rule]:
  channels = 3 if c.data.channels == 'rgb' else 1
  classifies = c.data.task == 'classification'
  yield (
    len(c.data.mean) != channels or len(c.data.std) != channels,
    'data.mean',
    f'{len(c.data.mean)} means for {channels} channels',
    'give one mean and one std per channel',
  )
  yield (
    min((*c.data.std, 1)) <= 0,
    'data.std',
    'a standard deviation is not positive',
    'give values above 0',
  )
  yield (
    classifies and c.data.source == 'folder',
    'data.task',
    'a folder has no test images of the training classes',
    "set data.source to 'datasets' or 'synthetic'",
  )
  yield (
    bool(c.data.poison) != bool(c.data.poisoned),
    'data.poisoned',
    f'{c.data.poison!r} poisons the images of '
    f'{errors.counted(len(c.data.poisoned), "client")}',
    'set data.poison and the names of the clients, or neither',
  )
  yield (
    c.data.poison == 'flip' and not _shares_persons(c),
    'data.poison',
    'no two clients have the same person under the same number, so that '
    'flipped labels only rename persons',
    "set data.client_split to 'iid' and data.labels to '', or use 'shuffle'",
  )
  yield (
    classifies and any('/' in name for name in c.data.without),
    'data.without',
    'the tests number all classes, also those of a person who is left out',
    'leave out clients only',
  )
  yield (
    classifies and c.data.labels in ('concat', 'max'),
    'data.labels',
    f'{c.data.labels!r} numbers classes differently at each client',
    "set it to ''",
  )


def _shares_persons(c: Config) -> bool:
  """Whether a label is the same person at several clients."""
  if c.data.client_split not in DIVIDE_PERSONS:
    return False
  numbered = c.data.labels or 'own' * (c.data.client_split == 'by_camera')
  return numbered in ('', 'global')


def _training(c: Config) -> Iterator[Rule]:
  yield (
    c.model.name == 'convnet' and not c.model.features,
    'model.features',
    'a convnet without blocks',
    'give the channels of at least one block',
  )
  yield (
    c.local.sampler not in ('uniform', 'poisson')
    and c.local.batch % c.local.identities > 0,
    'local.batch',
    f'{errors.counted(c.local.batch, "image")} for '
    f'{errors.counted(c.local.identities, "identity", "identities")}',
    'set it to a multiple of local.identities',
  )
  yield (
    c.model.norm == 'frozen' and not (c.model.pretrained or c.start_from),
    'model.norm',
    'no statistics to freeze',
    "set model.pretrained, or model.norm to 'group'",
  )
  yield (
    c.model.norm == 'group' and bool(c.model.pretrained),
    'model.norm',
    'pretrained weights need their statistics',
    "set it to 'frozen'",
  )
  yield (
    c.model.norm != 'batch' and c.evaluation.batch_stats != 'running',
    'evaluation.batch_stats',
    f'model.norm={c.model.norm} has no statistics of batches',
    "set it to 'running'",
  )
  momentum = c.optim.momentum if c.optim.name == 'sgd' else 0
  yield (
    c.local.accumulate and (momentum > 0 or c.optim.name != 'sgd'),
    'local.accumulate',
    'a single update per round cannot use momentum',
    'set optim.name=sgd and optim.momentum=0.0',
  )
  yield (
    c.optim.schedule == 'linear' and len(c.optim.points) < 2,
    'optim.points',
    f'{len(c.optim.points)} points',
    'give at least two pairs (round, factor)',
  )
  yield (
    any(a[0] >= b[0] for a, b in pairwise(c.optim.points)),
    'optim.points',
    'rounds are not in increasing order',
    'sort the points by round',
  )
  yield (
    c.optim.schedule == 'cosine' and 0 < c.optim.schedule_rounds < c.rounds,
    'optim.schedule_rounds',
    f'the rate is zero after round {c.optim.schedule_rounds} of {c.rounds}',
    'give at least as many rounds as the run has, or another schedule',
  )


def _tracklets(c: Config) -> Iterator[Rule]:
  tracklets = c.local.frames > 1
  yield (
    tracklets and c.data.client_split in ('iid', 'dirichlet'),
    'data.client_split',
    f'{c.data.client_split!r} divides the frames of a tracklet among clients',
    "set it to 'by_camera' or 'by_dataset', or local.frames to 1",
  )
  yield (
    tracklets and bool(c.data.poison),
    'data.poison',
    f'{c.data.poison!r} poisons images, not tracklets',
    "set it to '' and data.poisoned to (), or local.frames to 1",
  )
  yield (
    tracklets and c.local.sampler in ('poisson', 'poisson_pk'),
    'local.frames',
    f'the sampler {c.local.sampler} draws images, not tracklets',
    'set it to 1',
  )
  yield (
    tracklets and bool(c.data.unlabelled),
    'local.frames',
    'frames without labels have no tracklets',
    'set it to 1, or data.unlabelled to ()',
  )


def _augment(c: Config) -> Iterator[Rule]:
  amounts = (
    *(c.augment.jitter_brightness, c.augment.jitter_contrast),
    *(c.augment.jitter_saturation, c.augment.jitter_hue),
  )
  yield (
    bool(c.augment.jitter) and not any(amounts),
    'augment.jitter',
    'no colour is changed',
    'give an amount, or set it to 0',
  )
  area = c.augment.erase_area
  yield (
    len(area) != 2 or not 0 < area[0] <= area[1] <= 1,
    'augment.erase_area',
    f'{area} is not a range of fractions',
    'give the smallest and the largest fraction, above 0 and at most 1',
  )
  yield (
    bool(c.augment.copies) != (c.local.sampler == 'pk_caj'),
    'augment.copies',
    f'{c.augment.copies!r} with sampler {c.local.sampler}',
    'use copies with the sampler pk_caj, and no other sampler',
  )


def _evaluation(c: Config) -> Iterator[Rule]:
  yield not c.evaluation.ranks, 'evaluation.ranks', 'no ranks', 'give (1,)'
  yield (
    bool(c.evaluation.validation) and c.data.task == 'classification',
    'evaluation.validation',
    'held-out identities have no class',
    'set it to 0',
  )
  yield (
    c.evaluation.batch_stats in ON_GALLERY and c.data.task == 'classification',
    'evaluation.batch_stats',
    'a test of classes has no gallery whose moments can be measured',
    "set it to 'running' or 'source'",
  )
  yield (
    bool(c.evaluation.camera_norm) and c.data.task == 'classification',
    'evaluation.camera_norm',
    'a test of classes ranks no features',
    "set it to ''",
  )
