"""Rules for the fields of a configuration that lists a component."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedreid_jax.config import schema
from fedreid_jax.core import patterns

# (Whether the rule is violated, field, problem, fix).
Rule = tuple[Any, str, str, str]

OWN_LABELS = ('by_dataset', 'by_camera', 'by_identity')
# Splits of `data.client_split` that divide the images of one person.
DIVIDE_PERSONS = ('by_camera', 'iid', 'dirichlet', 'camera_independent')
# Parameters of the neck; if they are personal, the server cannot embed images.
NECK = 'params/neck/fc/kernel'


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


def _byzantine(c: Any) -> Iterator[Rule]:
  yield (
    not c.byzantine.clients and not c.byzantine.share,
    'byzantine.clients',
    'no client attacks',
    "name some, or set byzantine.share, or remove 'byzantine'",
  )


def _caj(c: Any) -> Iterator[Rule]:
  yield (
    c.local.sampler != 'pk_caj',
    'local.sampler',
    f'caj compares the three parts of a batch of pk_caj, not of '
    f'{c.local.sampler}',
    'use configs/caj.py',
  )


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
  private = 'dpsgd' in c.components
  yield (
    private and not c.dfh.noise,
    'dfh.noise',
    'dpsgd does not protect statistics that are sent without noise',
    'set it and dfh.clip above 0',
  )
  yield (
    private and c.dfh.loss != 'identity',
    'dfh.loss',
    'a loss of triplets is no function of one person, dpsgd cannot bound it',
    "set it to 'identity'",
  )
  yield (
    private and c.dfh.normalise != 'released',
    'dfh.normalise',
    'moments of the images of one person would take away their mean',
    "set it to 'released'",
  )


def _dppt(c: Any) -> Iterator[Rule]:
  yield (
    _own_labels(c) or c.data.labels == 'max',
    'data.labels',
    'dppt needs the same label for a person at all clients',
    "set data.client_split to 'camera_independent' or "
    "'entity_independent', or data.labels to 'global'",
  )


def _is_private(component: str, c: Any) -> Iterator[Rule]:
  """Yields the rule of a method with a guarantee."""
  yield (
    bool(c.start_from),
    'start_from',
    'the guarantee does not cover the rounds of another run',
    f"set it to '', or remove {component!r}",
  )


def _dp_fedavg(c: Any) -> Iterator[Rule]:
  yield (
    c.evaluation.batch_stats != 'running',
    'evaluation.batch_stats',
    "moments of the clients' images would leave them without noise",
    "set it to 'running', and model.norm to 'group' or 'frozen'",
  )
  yield (
    c.model.norm == 'batch',
    'model.norm',
    'running statistics would leave the clients without noise, and without '
    'them the tested model has none',
    "set it to 'frozen' with model.pretrained, or to 'group'",
  )
  yield (
    c.batch_stats_rule != 'keep_server',
    'batch_stats_rule',
    'running statistics would leave the clients without noise',
    "set it to 'keep_server'",
  )
  yield (
    c.fraction < 1
    and 'secagg' not in c.components  # sampling does not count there
    and not schema.is_default(c, 'availability'),
    'availability',
    'who is available breaks the random sampling of a guarantee',
    'keep its defaults, or set fraction to 1.0',
  )
  yield from _is_private('dp_fedavg', c)


def _dpsgd(c: Any) -> Iterator[Rule]:
  yield (
    c.dpsgd.unit == 'identity' and c.data.client_split in DIVIDE_PERSONS,
    'data.client_split',
    f'with {c.data.client_split!r} a person is at several clients, but epsilon '
    'is that of a person in one client',
    "set it to 'by_identity', 'by_dataset' or 'centralised'",
  )
  yield (
    c.dpsgd.unit == 'identity' and bool(c.data.poison),
    'data.poison',
    'labels of poisoned images are not those of persons, but epsilon is that '
    'of a person',
    "set it to ''",
  )
  yield (
    c.model.norm == 'batch',
    'model.norm',
    'batch normalisation mixes the images of several persons',
    "set it to 'frozen' with model.pretrained, or to 'group'",
  )
  for field in ('triplet', 'circle', 'weighted_triplet'):
    yield (
      c.loss[field] > 0,
      f'loss.{field}',
      'a loss of pairs is no function of one person, dpsgd cannot bound it',
      'set it to 0.0',
    )
  yield (
    c.local.accumulate,
    'local.accumulate',
    'dpsgd adds noise to every step',
    'set it to False',
  )
  yield from _is_private('dpsgd', c)


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


def _robust(c: Any) -> Iterator[Rule]:
  yield (
    c.batch_stats_rule == 'first_client',
    'batch_stats_rule',
    "'robust' cannot trust the running statistics of one client",
    "set it to 'average', which is the rule of robust, or 'keep_server'",
  )


def _secagg(c: Any) -> Iterator[Rule]:
  yield (
    c.batch_stats_rule == 'first_client',
    'batch_stats_rule',
    "'secagg' does not know the running statistics of one client",
    "set it to 'average' or 'keep_server'",
  )
  full = c.dp_fedavg.n_max if 'dp_fedavg' in c.components else 0
  yield (
    0 < c.secagg.n_max < full,
    'secagg.n_max',
    f'dp_fedavg gives a full weight to {full} images only, and secagg counts '
    f'at most {c.secagg.n_max}',
    'set it to 0 or to dp_fedavg.n_max',
  )


COMPONENTS: Mapping[str, Callable[[Any], Iterator[Rule]]] = {
  'byzantine': _byzantine,
  'caj': _caj,
  'cdw': _cdw,
  'client_clustering': functools.partial(
    _embeds_at_server, 'client_clustering'
  ),
  'dfh': _dfh,
  'dp_fedavg': _dp_fedavg,
  'dppt': _dppt,
  'dpsgd': _dpsgd,
  'fedavg': _fedavg,
  'fednova': _fednova,
  'kd': functools.partial(_embeds_at_server, 'kd'),
  'local_expert': _local_expert,
  'robust': _robust,
  'scaffold': functools.partial(_counts_steps, 'scaffold'),
  'secagg': _secagg,
}
