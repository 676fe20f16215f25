import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.algorithms import fedprox
from fedreid_jax.method.contexts import LossCtx
from fedreid_jax.round import compose

KERNEL, HEAD, MEAN = handmade.KERNEL, handmade.HEAD, handmade.MEAN


def test_pull_is_towards_what_was_sent_and_on_trainable_leaves_only():
  """The running mean travels but is not trained, the classifier stays."""
  own = handmade.variables(3.0, 5.0, 7.0)
  own[KERNEL] = own[KERNEL].at[0, 1].set(-1.0)
  sent = {n: handmade.variables(1.0, 0.0, 0.0)[n] for n in (KERNEL, MEAN)}
  ctx = handmade.context(LossCtx, received=sent)
  loss = fedprox.make(fedprox.Options(mu=0.1)).client.loss
  (value, metrics), grads = jax.value_and_grad(
    lambda variables: loss(variables, (), ctx), has_aux=True
  )(own)
  # five elements moved by 2 and one by -2: half of 0.1 times 24
  np.testing.assert_allclose(value, 1.2, rtol=1e-6)
  np.testing.assert_allclose(metrics['distance'], 24.0)
  np.testing.assert_allclose(
    grads[KERNEL], 0.1 * (own[KERNEL] - 1.0), rtol=1e-6
  )
  assert not grads[HEAD].any() and not grads[MEAN].any()


def test_no_gradient_reaches_the_anchor():
  own = handmade.variables(3.0)
  loss = fedprox.make(fedprox.Options(mu=1.0)).client.loss

  def of_anchor(anchor):
    ctx = handmade.context(LossCtx, received={KERNEL: anchor})
    return loss(own, (), ctx)[0]

  assert not jax.grad(of_anchor)(jnp.ones((3, 2))).any()


@pytest.mark.slow
def test_terms_without_weight_leave_fedpav(config, clients):
  """Nor does DFH's pass over the images change a model."""
  options = {'fedprox': {'mu': 0.0}, 'dfh': {'lam': 0.0, 'space': 'b'}}
  ends = []
  for names in (('fedpav',), ('fedpav', 'fedprox', 'dfh')):
    made = compose.load(names, options, algorithms)
    executor, variables, _ = toy.make_rounds(config, clients[:2], made)
    ends.append(toy.run(executor, variables, 2))
  toy.assert_close_trees(ends[0][0].shared, ends[1][0].shared, 1e-6)
  toy.assert_close_trees(ends[0][1].personal, ends[1][1].personal, 1e-6)
  assert ends[1][2][0]['metrics']['fedprox_distance'] > 0
