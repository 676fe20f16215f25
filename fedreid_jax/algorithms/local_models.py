"""Local models: the trained model of each client, kept for evaluation.

Zhuang et al. (FedReIDBench, ACM MM 2020, section 4) evaluate two models of a
round: the global model, and the "local model" (w_k, v_k) of each client after
local training and before aggregation. With w the shared parameters and v_k the
classifier, client k keeps the state

  (w_k, v_k) at the end of its last participation, and whether there was one.

The running moments of batch normalisation follow the weights with a delay. The
paper tests with them (`evaluation.batch_stats='running'`); 'source' tests with
moments that are re-estimated on the images of the client.

The component does not change the training. It needs host memory for one copy of
the model per client, and these copies are part of checkpoints.

Deviations from the paper: none. Deviations from the released code: it evaluates
the models of the clients that are sampled in the round; here a client that was
not sampled keeps its last model and is evaluated with it.
"""

import jax.numpy as jnp

from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.method.contexts import RoundEndCtx

# Variables of the model, and whether the client has trained before.
LastModel = tuple[Flat, Array]


def make() -> Component:
  """Builds the component."""
  return Component(
    'local_models',
    client=ClientHooks(init=none_yet, round_end=keep),
    properties=('local_model',),
  )


def none_yet(key: Array, variables: Flat) -> LastModel:
  """Starts as a client that has not trained; a `ClientHooks.init`."""
  del key
  # The values are arbitrary: they are not used before the flag is set.
  return variables, jnp.bool_(False)


def keep(state: LastModel, ctx: RoundEndCtx) -> tuple[LastModel, tuple[()]]:
  """Keeps the trained model; a `ClientHooks.round_end`."""
  del state
  return (ctx.variables, jnp.bool_(True)), ()
