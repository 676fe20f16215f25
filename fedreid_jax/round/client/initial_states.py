"""The states of the server and of the clients before round 0."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedreid_jax.core import param_filter, prng, types
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method import component, contexts
from fedreid_jax.method.component import Component
from fedreid_jax.round.settings import Settings


def server(
  settings: Settings,
  components: Sequence[Component],
  clustered: bool,
  variables: Flat,
  sizes: Array,
  public: Array,
  seed: Array,
) -> types.ServerState:
  """Returns the state of the server.

  Args:
    settings: settings of the local round.
    components: components of the method.
    clustered: whether the server has a model for every client, for clusters.
    variables: variables of the model.
    sizes: number of images of each client, float32 `[N]`.
    public: images of the public set.
    seed: `prng.data` of the run's seed.
  """
  num_clients = sizes.shape[0]
  leaves, _ = param_filter.split(variables, settings.shared)
  # There are at most as many clusters as clients. With this number of models
  # clusters may change without a new program.
  num_groups = num_clients if clustered else 1
  shared = {
    n: jnp.broadcast_to(x, (num_groups, *x.shape)) for n, x in leaves.items()
  }
  base = prng.key(seed, Stream.SERVER_INIT)
  states = {
    c.name: c.server.init(
      contexts.ServerInitCtx(
        key=jax.random.fold_in(base, prng.component_uid(c.name)),
        num_clients=num_clients,
        sizes=sizes,
        outputs=settings.outputs,
        shared=leaves,
        public=public,
      )
    )
    for c in components
    if c.server
  }
  return types.ServerState(shared, jnp.zeros(num_clients, jnp.int32), states)


def client(
  settings: Settings,
  components: Sequence[Component],
  uid: Array,
  pretrained: Flat,
  seed: Array,
) -> types.ClientState:
  """Returns the state of one client.

  Args:
    settings: settings of the local round.
    components: components of the method.
    uid: hash of the client's name.
    pretrained: variables that replace the random values of the client.
    seed: `prng.data` of the run's seed.
  """
  key = prng.client(seed, Stream.CLASSIFIER, 0, uid)
  variables = settings.model.init(key) | pretrained
  shared, personal = param_filter.split(variables, settings.shared)
  states = {
    c.name: c.client.init(
      jax.random.fold_in(key, prng.component_uid(c.name)), variables
    )
    for c in components
    if c.client
  }
  states |= {
    component.transport_state(c): kept
    for c in components
    if c.transport and jax.tree.leaves(kept := c.transport.init(shared))
  }
  params, _ = param_filter.trainable(variables)
  opt_state = settings.optimizer.init(params) if settings.persistent else ()
  return types.ClientState(personal, states, opt_state)
