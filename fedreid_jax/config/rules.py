"""Rules for combinations of the fields that every configuration has.

`component_rules` has the rules of single components.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fedreid_jax.config import component_rules, schema
from fedreid_jax.config.component_rules import Rule


def rules(c: Any) -> Iterator[Rule]:
  """Yields the rules of the fields, then those of the listed components."""
  yield from _run(c)
  yield from _data(c)
  yield from _training(c)
  yield from _evaluation(c)
  for component in c.components:
    if component in component_rules.COMPONENTS:
      yield from component_rules.COMPONENTS[component](c)


def _run(c: Any) -> Iterator[Rule]:
  yield (
    not c.name or '/' in c.name,
    'name',
    f'{c.name!r} is not a name',
    "give a word without '/'",
  )
  yield not c.components, 'components', 'no component', "add 'fedpav'"
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
  yield from _availability(c)
  yield (
    len({*c.track}) < len(c.track),
    'track',
    'a tracker is listed twice',
    'list each once',
  )


def _availability(c: Any) -> Iterator[Rule]:
  given = c.availability
  yield (
    (given.in_flight > 0) != ('fedbuff' in c.components),
    'availability.in_flight',
    f'{given.in_flight} clients in flight with {", ".join(c.components)}',
    'set it above 0 with the component fedbuff, and to 0 without it',
  )
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
    c.cohort == 'poisson' and not schema.is_default(c, 'availability'),
    'availability',
    'who is available breaks the independent sampling of cohort=poisson',
    "set cohort to 'fixed', or keep the defaults of availability",
  )


def _data(c: Any) -> Iterator[Rule]:
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
    f'{c.data.poison!r} poisons the images of {len(c.data.poisoned)} clients',
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
    classifies and c.data.labels in ('concat', 'max'),
    'data.labels',
    f'{c.data.labels!r} numbers classes differently at each client',
    "set it to ''",
  )


def _shares_persons(c: Any) -> bool:
  """Returns whether a label is the same person at several clients."""
  if c.data.client_split not in component_rules.DIVIDE_PERSONS:
    return False
  numbered = c.data.labels or 'own' * (c.data.client_split == 'by_camera')
  return numbered in ('', 'global')


def _training(c: Any) -> Iterator[Rule]:
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
    f'{c.local.batch} images for {c.local.identities} identities',
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


def _evaluation(c: Any) -> Iterator[Rule]:
  yield not c.evaluation.ranks, 'evaluation.ranks', 'no ranks', 'give (1,)'
  yield (
    bool(c.evaluation.validation) and c.data.task == 'classification',
    'evaluation.validation',
    'held-out identities have no class',
    'set it to 0',
  )
  yield (
    c.evaluation.ensemble and 'standalone' not in c.components,
    'evaluation.ensemble',
    'ensembles need models that are trained independently',
    'use configs/standalone.py',
  )
