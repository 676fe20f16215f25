"""The model that a client had at the end of its last round."""

import jax.numpy as jnp

from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method.contexts import RoundEndCtx

# Variables of the model, and whether the client has trained before.
LastModel = tuple[Flat, Array]


def none_yet(key: Array, variables: Flat) -> LastModel:
  """Starts as a client that has not trained; a `ClientHooks.init`."""
  del key
  # The values are arbitrary: they are not used before the flag is set.
  return variables, jnp.bool_(False)


def keep(state: LastModel, ctx: RoundEndCtx) -> tuple[LastModel, tuple[()]]:
  """Keeps the trained model; a `ClientHooks.round_end`."""
  del state
  return (ctx.variables, jnp.bool_(True)), ()
