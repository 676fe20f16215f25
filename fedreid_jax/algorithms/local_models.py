"""Local models: each client's own model, kept for evaluation.

Zhuang et al. (FedReIDBench, ACM MM 2020, section 4) evaluate two models of a
round: the global one, and each client's (w_k, v_k) after local training and
before aggregation, its "local model". With w the leaves that travel and v_k the
classifier, the state kept at client k is

  (w_k, v_k) at the end of its last participation, and whether there was one.

Its running moments of batch normalisation follow its weights with a delay; the
paper tests with them (`evaluation.batch_stats='running'`), 'source' tests with
moments re-estimated on the client's own images.

Nothing of the training changes; a copy of the model a client costs host memory
and goes into checkpoints.

Deviations from the paper: none. Deviations from the released code: it evaluates
the models of the clients drawn in the round; here a client that was not drawn
keeps, and is evaluated with, its last one.
"""

import jax.numpy as jnp

from fedreid_jax.core.component import ClientHooks, Component


def make() -> Component:
  """Builds the component."""
  return Component(
    'local_models',
    client=ClientHooks(
      init=lambda key, variables: (variables, jnp.bool_(False)),
      round_end=lambda state, ctx: ((ctx.variables, jnp.bool_(True)), ()),
      models_to_evaluate=lambda state: state,
    ),
  )
