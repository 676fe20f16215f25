import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import compose
from fedreid_jax.core.component import Component, LocalTerm

BATCH = 4
SEEN = (
  jnp.zeros((BATCH, *toy.IMAGE_SHAPE)),
  jnp.zeros(BATCH, jnp.int32),
  jnp.zeros(BATCH, bool),
)


def witness():
  """A component that keeps the first batch of its client's last round."""

  def finish(state, ctx):
    del state
    batch = ctx.first_batch
    return (batch.images, batch.labels, batch.valid), ()

  return Component(
    'witness',
    term=LocalTerm(
      init=lambda key, variables: SEEN,
      finish=finish,
      first_batch=True,
    ),
  )


@pytest.mark.parametrize('budget', [0.0, 700 / 2**20], ids=['whole', 'cut'])
def test_it_is_the_first_of_the_round_not_augmented(config, clients, budget):
  """Whether a round's images come at once or segment by segment."""
  config.local.epochs = 2
  config.execution.image_budget_mb = budget
  components = (*compose.load(('fedpav',), {}, algorithms), witness())
  executor, variables, _ = toy.make_executor(config, clients, components)
  _, states, _ = toy.run(executor, variables, 2)
  for k, client in enumerate(clients):
    images, labels, valid = (leaf[k] for leaf in states.slots['witness'])
    plan = executor._planner(1, k)
    assert len(plan.rows) > 1 and (plan.rows != plan.rows[0]).any()
    rows = plan.rows[0]
    np.testing.assert_array_equal(labels, client.labels[rows])
    np.testing.assert_array_equal(valid, plan.valid[0])
    expected = (client.images()[rows].astype(np.float32) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(images, expected, atol=1e-5)
