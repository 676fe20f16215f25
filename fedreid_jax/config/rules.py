"""Which components and fields of a configuration go together."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fedreid_jax.core import patterns

Rule = tuple[Any, str, str, str]

OWN_LABELS = ('by_dataset', 'by_camera', 'by_identity')
# Leaves of a head: if they stay at home, a client's features need them.
NECK = 'params/neck/fc/kernel'
SERVER_SIDE = {'kd', 'client_clustering'}  # compute features of clients' models
ALONE = {
  'standalone',
  'local_expert',
  'local_models',
  'snr',
  'dns',
  'deen',
  'lba',
}


def rules(c: Any) -> Iterator[Rule]:
  """Yields (whether it is broken, field, what, what to do)."""
  yield from _optimisation(c, {*c.components})
  yield from _sharing(c, {*c.components})
  area = c.augment.erase_area
  yield (
    len(area) != 2 or not 0 < area[0] <= area[1] <= 1,
    'augment.erase_area',
    f'{area}',
    'smallest and largest share, above 0 and at most 1',
  )
  yield (
    bool(c.augment.copies) != (c.local.sampler == 'pk_caj'),
    'augment.copies',
    f'{c.augment.copies!r} with sampler {c.local.sampler}',
    'pk_caj repeats the visible images, and only copies changes them',
  )
  yield (
    min((*c.optim.milestones, 0)) < 0,
    'optim.milestones',
    f'{c.optim.milestones}',
    'rounds, or shares of the run, from 0 up',
  )
  yield (
    any(a[0] >= b[0] for a, b in pairwise(c.optim.points)),
    'optim.points',
    'rounds do not rise',
    'sort them',
  )


def _optimisation(c: Any, parts: set[str]) -> Iterator[Rule]:
  counted = parts & {'fednova', 'scaffold'}
  momentum = c.optim.momentum if c.optim.name == 'sgd' else 0
  yield (
    c.local.accumulate and (momentum > 0 or c.optim.name != 'sgd'),
    'local.accumulate',
    'a single step a round has no momentum',
    'set optim.name=sgd and optim.momentum=0.0',
  )
  yield (
    counted and c.local.accumulate,
    'local.accumulate',
    'fednova and scaffold count local steps, and there is one',
    'set it to False',
  )
  yield (
    counted and not c.optim.reset_each_round,
    'optim.reset_each_round',
    'fednova and scaffold need momentum to start at zero in every round',
    'set it to True',
  )
  yield (
    counted and c.optim.name != 'sgd',
    'optim.name',
    f'fednova and scaffold are defined for SGD, not {c.optim.name}',
    'set it to sgd',
  )
  yield (
    {'uniform', 'scaffold'} <= parts,
    'scaffold.weights',
    "'uniform' weights the model only, and the control would go by size",
    "leave 'uniform' out and set it to uniform",
  )
  yield (
    {'fednova', 'fedprox'} <= parts and c.fednova.mu != c.fedprox.mu,
    'fednova.mu',
    f'{c.fednova.mu}, but the proximal weight is {c.fedprox.mu}',
    'set it to fedprox.mu',
  )


def _sharing(c: Any, parts: set[str]) -> Iterator[Rule]:
  own = (
    not c.data.labels
    and c.data.client_split in OWN_LABELS
    and (len(c.data.sources) != 1 or c.data.client_split != 'by_dataset')
  )
  yield (
    'fedavg' in parts and own,
    'data.labels',
    'a classifier travels, but clients number their own identities',
    "set it to 'concat', 'max' or 'global', or share with 'fedpav'",
  )
  yield (
    'dppt' in parts and (own or c.data.labels == 'max'),
    'data.labels',
    'dppt needs one number a person at all clients',
    "set data.client_split to 'camera_independent' or "
    "'entity_independent', or data.labels to 'global'",
  )
  at_home = 'fedpav' in parts and not patterns.Pattern(
    c.fedpav.shared, 'fedpav.shared'
  ).match(NECK)
  yield (
    parts & SERVER_SIDE
    and at_home
    and c.model.neck in ('bottleneck', 'mapping'),
    'fedpav.shared',
    'kd and client_clustering compare embeddings, whose layers do not travel',
    'share the neck',
  )
  public = parts & SERVER_SIDE or ('cdw' in parts and c.cdw.batch == 'public')
  yield (
    public and c.model.modality_specific_stages > 0,
    'model.modality_specific_stages',
    'public images have no modality',
    'use one stream with kd, client_clustering and cdw.batch=public',
  )
  pooled = c.dfh.space == 'f'
  yield (
    'dfh' in parts and pooled != (c.model.neck == 'none'),
    'dfh.space',
    f'{c.dfh.space!r} with neck {c.model.neck!r}: statistics, classifier and '
    'retrieval would be of different features',
    "set model.neck='none'" if pooled else "set it to 'f', or choose a neck",
  )
  yield (
    'standalone' in parts and parts - ALONE,
    'components',
    f'nothing travels, so {", ".join(sorted(parts - ALONE))} has no effect',
    'leave it out',
  )
  yield (
    'local_expert' in parts and c.local_expert.frozen and not c.start_from,
    'start_from',
    'a frozen expert that was never trained',
    'give the work directory of a finished run',
  )
  yield (
    c.evaluation.ensemble and 'standalone' not in parts,
    'evaluation.ensemble',
    'ensembles are of models trained alone',
    'use configs/standalone.py',
  )
