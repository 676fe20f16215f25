"""Rules of a component for the other fields of a configuration.

A module of a component may have, beside its `Options`,

  def rules(given: rules.Given) -> Iterator[rules.Rule]: ...

which are checked before anything is compiled. A rule recognises other
components by their properties and hooks, so that a plug-in is treated like a
built-in component. This module has the rules that several components share.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedreid_jax.core import patterns
from fedreid_jax.method.component import Component

# (Whether the rule is violated, field, problem, fix).
Rule = tuple[Any, str, str, str]

# Splits of `data.client_split` whose clients number their own identities.
OWN_LABELS = ('by_dataset', 'by_camera', 'by_identity')
# Splits of `data.client_split` that may divide the images of one person.
DIVIDE_PERSONS = ('by_camera', 'iid', 'dirichlet', 'camera_independent')
# A parameter of the neck. If it is personal, the server cannot embed images.
NECK = 'params/neck/fc/kernel'
RESNET_STAGES = 4
VIT_STAGES = 1  # `models.backbones.vit` has a place before its blocks only


class Given(NamedTuple):
  """A configuration, for the rules of one component.

  Attributes:
    name: name of the component's group of fields, for messages.
    options: the component's `Options`.
    config: the whole configuration.
    others: the other components of the method, in order.
  """

  name: str
  options: Any
  config: Any
  others: Sequence[Component]


def numbers_own_labels(c: Any) -> bool:
  """Returns whether clients of a configuration number their own identities."""
  return (
    not c.data.labels
    and c.data.client_split in OWN_LABELS
    and (len(c.data.sources) != 1 or c.data.client_split != 'by_dataset')
  )


def divides_by_steps(given: Given) -> Iterator[Rule]:
  """Yields the rules of a method that divides by the number of steps."""
  c = given.config
  yield (
    c.local.accumulate,
    'local.accumulate',
    f'{given.name} needs the number of local steps, but there is only one step',
    'set it to False',
  )
  yield (
    not c.optim.reset_each_round,
    'optim.reset_each_round',
    f'{given.name} needs a momentum of zero at the start of every round',
    'set it to True',
  )
  yield (
    c.optim.name != 'sgd',
    'optim.name',
    f'{given.name} is defined for SGD, not {c.optim.name}',
    'set it to sgd',
  )


def has_stages(
  given: Given, field: str, stages: Sequence[int]
) -> Iterator[Rule]:
  """Yields the rule of a method that changes the network after some stages."""
  model = given.config.model
  # Of the networks with such places, all others have those of a ResNet.
  stages_of = {'convnet': len(model.features), 'vit': VIT_STAGES}
  num = stages_of.get(model.name, RESNET_STAGES)
  yield (
    max(stages, default=0) > num,
    f'{given.name}.{field}',
    f'stage {max(stages, default=0)} of a network with {num}',
    f'give at most {num}',
  )


def needs_public(given: Given, by: str = '') -> Iterator[Rule]:
  """Yields the rule of a method that uses public images.

  Args:
    by: field and value that need the images, by default the component.
  """
  yield (
    given.config.model.modality_specific_stages > 0,
    'model.modality_specific_stages',
    'public images have no modality',
    f'set it to 0 with {by or given.name}',
  )


def embeds_at_server(given: Given) -> Iterator[Rule]:
  """Yields the rules of a server that embeds images with clients' models."""
  for other in given.others:
    if other.shared is not None:
      field = f'{other.name}.shared'
      shares = patterns.Pattern(other.shared, field).match(NECK)
      yield (
        not shares and given.config.model.neck in ('bottleneck', 'mapping'),
        field,
        f'{given.name} compares embeddings, but the neck is not shared',
        'share the parameters of the neck',
      )
  yield from needs_public(given)


def is_private(given: Given) -> Iterator[Rule]:
  """Yields the rules of a method with a guarantee."""
  yield (
    bool(given.config.start_from),
    'start_from',
    'the guarantee does not cover the rounds of another run',
    f"set it to '', or remove {given.name!r}",
  )
