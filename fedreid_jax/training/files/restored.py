"""The models of a checkpoint, and the network of these models."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedreid_jax.core import types
from fedreid_jax.data import augment
from fedreid_jax.data.federation import Federation
from fedreid_jax.round.devices import placement
from fedreid_jax.training import build
from fedreid_jax.training.clients import named_models
from fedreid_jax.training.files import checkpoint, structure


class Restored(NamedTuple):
  """The models of a checkpoint.

  Attributes:
    step: rounds of training.
    models: variables by the names of `named_models.of`.
    groups: group of every client, int32 `[N]`.
    host: the JSON part.
  """

  step: int
  models: dict[str, types.Flat]
  groups: np.ndarray
  host: dict[str, Any]


def restore(saved: checkpoint.Checkpoints, which: str) -> Restored:
  """Restores the models of a run.

  Args:
    saved: its checkpoints.
    which: 'latest', 'best' or a step.

  Raises:
    IntegrityError: when there is no such checkpoint, or it does not verify.
  """
  step = saved.find(which)
  shared, personal, groups, host = saved.restore_models(step)
  models = named_models.of(shared, personal, groups, host['clients'])
  return Restored(step, models, groups, host)


class Network(NamedTuple):
  """The network of a checkpoint.

  Attributes:
    model: the network.
    variables: initial ones, for parameters that were never shared.
    transforms: of images.
    mesh: devices.
  """

  model: types.Model
  variables: types.Flat
  transforms: augment.Transforms
  mesh: Mesh


def num_classes(leaves: types.Flat) -> int:
  """Returns the columns of a model's classifier, 1 if it is missing."""
  kernel = leaves.get('params/classifier/kernel')
  return 1 if kernel is None else kernel.shape[-1]


def network(config, federation: Federation, leaves: types.Flat) -> Network:
  """Builds the network that belongs to leaves of a checkpoint.

  Args:
    config: all of it.
    federation: images.
    leaves: of one model; parameters that were never shared may be missing.

  Raises:
    IntegrityError: when they do not fit the configured network.
  """
  # The classifier has the columns of the checkpoint, because the clients that
  # determined them may not be loaded.
  model = build.network(config, num_classes(leaves), federation.image_shape)
  variables = jax.jit(model.init)(jax.random.key(config.seed))
  structure.check_fits(leaves, variables)
  return Network(
    model,
    variables,
    augment.make(config.augment, federation.mean, federation.std),
    placement.make_mesh(config.execution.devices or None),
  )
