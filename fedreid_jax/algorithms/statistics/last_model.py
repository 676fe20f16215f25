"""The model that a client had at the end of its last round."""

import jax.numpy as jnp

from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method.contexts import RoundEndCtx

# Variables of the model, and whether the client has trained before.
LastModel = tuple[Flat, Array]


def none_yet(key: Array, variables: Flat) -> LastModel:
  """A `ClientHooks.init`: the client has not trained; values are arbitrary."""
  del key
  return variables, jnp.bool_(False)


def keep(state: LastModel, ctx: RoundEndCtx) -> tuple[LastModel, tuple[()]]:
  """A `ClientHooks.round_end` that keeps the trained model."""
  del state
  return (ctx.variables, jnp.bool_(True)), ()
