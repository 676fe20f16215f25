"""The models of a checkpoint by their names, and their network."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedreid_jax import errors
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import model_names, trees, types
from fedreid_jax.data import augment
from fedreid_jax.data.federation import Federation
from fedreid_jax.round import placement
from fedreid_jax.round.client_store import OnDemand
from fedreid_jax.training import build, whole_network
from fedreid_jax.training.files import checkpoint

AT_ONCE = 2**30  # bytes of models that are read together


def joined(
  server: Mapping[str, types.Flat],
  own: Mapping[int, types.Flat],
  names: Sequence[str],
) -> OnDemand[str]:
  """Returns models of the server, and then those of clients, 'client:NAME'.

  Those of clients are read on demand: all of them may not fit in memory. The
  keys of `own` are canonical indices of clients.
  """
  index = {model_names.of_client(names[k]): k for k in own}

  def read(name: str) -> types.Flat:
    return own[index[name]] if name in index else server[name]

  # A method may share nothing and keep models of clients as well.
  return OnDemand(dict.fromkeys((*server, *index)), read)


def of(
  shared: types.Flat,
  personal: Mapping[int, types.Flat],
  groups: np.ndarray,
  names: Sequence[str],
) -> Mapping[str, types.Flat]:
  """The variables of each model of a run by its name.

  A single model is named 'global', and several are named 'cluster:GROUP'.
  Without shared parameters the model of each client is named 'client:NAME'.
  Keys of `personal` are canonical indices of clients; groups are int32 `[N]`.
  """
  if not shared:
    return joined({}, personal, names)
  several = next(iter(shared.values())).shape[0] > 1
  # A model of the server gets personal parameters of any client, because only
  # identity scores depend on them.
  own = personal[min(personal)] if personal else {}
  return {
    model_names.of_cluster(group) if several else model_names.GLOBAL: {
      n: leaf[group] for n, leaf in shared.items()
    }
    | own
    for group in np.unique(groups)
  }


def choose(models: Mapping[str, Any], name: str) -> str:
  """Returns the name of a model that exists, the first one for ''.

  Raises:
    ConfigError: for an unknown name, or without a model.
  """
  if not models:
    raise errors.ConfigError(
      'the checkpoint has no model: its clients have not trained',
      '--checkpoint',
      'choose a later one',
    )
  name = name or next(iter(models))
  if name not in models:
    raise errors.ConfigError(
      f'no model {name!r}', '--model', f'there are {", ".join(models)}'
    )
  return name


class Restored(NamedTuple):
  """The models of a checkpoint."""

  step: int  # rounds of training
  models: Mapping[str, types.Flat]  # by the names of `of`
  groups: np.ndarray  # of every client, int32 `[N]`
  host: dict[str, Any]  # the JSON part


def restore(saved: checkpoint.Checkpoints, which: str) -> Restored:
  """Restores the models of the step `which`, or the 'latest' or 'best' one.

  Raises:
    IntegrityError: when there is no such checkpoint, or it does not verify.
  """
  step = saved.find(which)
  shared, personal, groups, host = saved.restore_models(step)
  models = of(shared, personal, groups, host['clients'])
  # A run that goes on may delete files of clients, so that models of at most
  # `AT_ONCE` bytes are read now. Others are read when they are needed.
  size = len(models) * trees.num_bytes(next(iter(models.values()), {}))
  if size <= AT_ONCE:
    models = dict(models)
  return Restored(step, models, groups, host)


class Network(NamedTuple):
  """The network of a checkpoint."""

  model: types.Model
  variables: types.Flat  # initial ones, of parameters never shared
  transforms: augment.Transforms
  mesh: Mesh


def num_classes(leaves: types.Flat) -> int:
  """Returns the columns of a model's classifier, 1 if it is missing."""
  kernel = leaves.get('params/classifier/kernel')
  return 1 if kernel is None else kernel.shape[-1]


def network(
  config: Config, federation: Federation, leaves: types.Flat
) -> Network:
  """Builds the network of a model; parameters never shared may be missing.

  Raises:
    IntegrityError: when the leaves do not fit the configured network.
  """
  # The classifier has the columns of the checkpoint, because the clients that
  # determined them may not be loaded.
  model = build.network(config, num_classes(leaves), federation.image_shape)
  variables = jax.jit(model.init)(jax.random.key(config.seed))
  whole_network.check_fits(leaves, variables)
  return Network(
    model,
    variables,
    augment.make(config.augment, federation.mean, federation.std),
    placement.make_mesh(config.execution.devices or None),
  )
