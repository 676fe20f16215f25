"""A tiny federation and what runs it, shared by tests."""

import dataclasses
import math

import jax
import numpy as np

from fedreid_jax.data import federation
from fedreid_jax.method import contexts
from fedreid_jax.training.contract import (
  IMAGE_SHAPE,
  SIZES,
  make_rounds,
  run,
  toy_client,
  toy_clients,
  toy_config,
  toy_images,
)

__all__ = [
  'IMAGE_SHAPE',
  'SIZES',
  'make_rounds',
  'run',
  'toy_client',
  'toy_clients',
  'toy_config',
  'toy_images',
]


def replaced(config, fields):
  """Returns a configuration, or a group, with fields changed by full names."""
  for name, value in fields.items():
    group, _, field = name.rpartition('.')
    if group in getattr(config, 'options', {}):
      changed = dataclasses.replace(config.options[group], **{field: value})
      group, value = 'options', {**config.options, group: changed}
    elif group:
      value = dataclasses.replace(getattr(config, group), **{field: value})
    config = dataclasses.replace(config, **{group or field: value})
  return config


def synthetic_config(identities=4):
  """A round on two synthetic domains with small images, tested on a third.

  Args:
    identities: of each domain, with four images each.
  """
  config = replaced(
    toy_config(),
    {
      'data.sources': ('plaza', 'campus'),
      'data.targets': ('mall',),
      'data.height': 16,
      'data.width': 8,
      'data.identities': identities,
      'data.target_identities': identities,
      'data.shots': 2,
      'data.cameras': 2,
      'execution.devices': 1,
      'rounds': 1,
      'evaluation.every': 1,
    },
  )
  return config


def toy_public() -> federation.Images:
  """Forty images everybody may see."""
  return toy_images('public', 40)


def toy_federation(clients) -> federation.Federation:
  """Clients and one target, whose first eight images are queries."""
  target = toy_images('target', 24, 5)
  return federation.Federation(
    clients,
    (federation.split_target(target, np.arange(24) < 8),),
    IMAGE_SHAPE,
    (0.5,),
    (0.25,),
    'toy',
  )


def step(**parts) -> contexts.LossCtx:
  """A context of a step with some of its fields, None for the others."""
  names = [field.name for field in dataclasses.fields(contexts.LossCtx)]
  return contexts.LossCtx(**(dict.fromkeys(names) | parts))


def num_parameters(tree) -> int:
  """Numbers in the leaves of a tree, of arrays or of shapes."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def assert_equal_trees(a, b):
  """Fails unless two trees have the same bits."""
  jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close_trees(a, b, tolerance: float):
  """Fails unless each leaf is close, as a share of its largest value."""

  def check(x, y):
    scale = max(np.abs(x).max(initial=0), 1.0)
    np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)

  jax.tree.map(check, a, b)
