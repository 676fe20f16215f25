"""Rules for combinations of fields and components in a configuration.

`COMPONENTS` contains the rules of single components; the others are rules of
fields that every configuration has.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from fedreid_jax.core import patterns

# (Whether the rule is violated, field, problem, fix).
Rule = tuple[Any, str, str, str]

OWN_LABELS = ('by_dataset', 'by_camera', 'by_identity')
# Parameters of the neck; if they are personal, the server cannot embed images.
NECK = 'params/neck/fc/kernel'


def rules(c: Any) -> Iterator[Rule]:
  """Yields the rules of the fields, then those of the listed components."""
  yield from _run(c)
  yield from _data(c)
  yield from _training(c)
  yield from _evaluation(c)
  for component in c.components:
    if component in COMPONENTS:
      yield from COMPONENTS[component](c)


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
    classifies and c.data.labels in ('concat', 'max'),
    'data.labels',
    f'{c.data.labels!r} numbers classes differently at each client',
    "set it to ''",
  )


def _training(c: Any) -> Iterator[Rule]:
  yield (
    c.model.name == 'convnet' and not c.model.features,
    'model.features',
    'a convnet without blocks',
    'give the channels of at least one block',
  )
  yield (
    c.local.sampler != 'uniform' and c.local.batch % c.local.identities > 0,
    'local.batch',
    f'{c.local.batch} images for {c.local.identities} identities',
    'set it to a multiple of local.identities',
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
    c.evaluation.ensemble and 'standalone' not in c.components,
    'evaluation.ensemble',
    'ensembles need models that are trained independently',
    'use configs/standalone.py',
  )


def _own_labels(c: Any) -> bool:
  """Returns whether clients number their own identities."""
  return (
    not c.data.labels
    and c.data.client_split in OWN_LABELS
    and (len(c.data.sources) != 1 or c.data.client_split != 'by_dataset')
  )


def _counts_steps(component: str, c: Any) -> Iterator[Rule]:
  """Yields the rules of a method that divides by the number of steps."""
  yield (
    c.local.accumulate,
    'local.accumulate',
    f'{component} needs the number of local steps, but there is only one step',
    'set it to False',
  )
  yield (
    not c.optim.reset_each_round,
    'optim.reset_each_round',
    f'{component} needs a momentum of zero at the start of every round',
    'set it to True',
  )
  yield (
    c.optim.name != 'sgd',
    'optim.name',
    f'{component} is defined for SGD, not {c.optim.name}',
    'set it to sgd',
  )


def _needs_public(component: str, c: Any) -> Iterator[Rule]:
  """Yields the rule of a method that compares models on public images."""
  yield (
    c.model.modality_specific_stages > 0,
    'model.modality_specific_stages',
    'public images have no modality',
    f'set it to 0 with {component}',
  )


def _embeds_at_server(component: str, c: Any) -> Iterator[Rule]:
  """Yields the rules of a server that embeds images with clients' models."""
  personal = 'fedpav' in c.components and not patterns.Pattern(
    c.fedpav.shared, 'fedpav.shared'
  ).match(NECK)
  yield (
    personal and c.model.neck in ('bottleneck', 'mapping'),
    'fedpav.shared',
    f'{component} compares embeddings, but the neck is not shared',
    'share the parameters of the neck',
  )
  yield from _needs_public(component, c)


def _cdw(c: Any) -> Iterator[Rule]:
  if c.cdw.batch == 'public':
    yield from _needs_public('cdw.batch=public', c)


def _dfh(c: Any) -> Iterator[Rule]:
  pooled = c.dfh.space == 'f'
  yield (
    pooled != (c.model.neck == 'none'),
    'dfh.space',
    f'{c.dfh.space!r} with neck {c.model.neck!r}: statistics, classifier and '
    'retrieval would use different features',
    "set model.neck='none'" if pooled else "set it to 'f', or choose a neck",
  )


def _dppt(c: Any) -> Iterator[Rule]:
  yield (
    _own_labels(c) or c.data.labels == 'max',
    'data.labels',
    'dppt needs the same label for a person at all clients',
    "set data.client_split to 'camera_independent' or "
    "'entity_independent', or data.labels to 'global'",
  )


def _fedavg(c: Any) -> Iterator[Rule]:
  yield (
    _own_labels(c),
    'data.labels',
    'the classifier is shared, but clients number their own identities',
    "set it to 'concat', 'max' or 'global', or use 'fedpav'",
  )


def _fednova(c: Any) -> Iterator[Rule]:
  yield from _counts_steps('fednova', c)
  yield (
    'fedprox' in c.components and c.fednova.mu != c.fedprox.mu,
    'fednova.mu',
    f'{c.fednova.mu}, but the proximal weight is {c.fedprox.mu}',
    'set it to fedprox.mu',
  )


def _local_expert(c: Any) -> Iterator[Rule]:
  yield (
    c.local_expert.frozen and not c.start_from,
    'start_from',
    'a frozen expert needs a trained model',
    'set it to the work directory of a finished run',
  )


COMPONENTS: Mapping[str, Callable[[Any], Iterator[Rule]]] = {
  'cdw': _cdw,
  'client_clustering': functools.partial(
    _embeds_at_server, 'client_clustering'
  ),
  'dfh': _dfh,
  'dppt': _dppt,
  'fedavg': _fedavg,
  'fednova': _fednova,
  'kd': functools.partial(_embeds_at_server, 'kd'),
  'local_expert': _local_expert,
  'scaffold': functools.partial(_counts_steps, 'scaffold'),
}
