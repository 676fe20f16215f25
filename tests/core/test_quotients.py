import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.algorithms.statistics import clusters, moments
from fedreid_jax.core import programs, quotients
from fedreid_jax.losses import cross_modal, hallucination, metric
from fedreid_jax.models import alignment
from fedreid_jax.models.backbones import vit
from fedreid_jax.models.layers import norm

X = jnp.asarray(np.random.default_rng(0).normal(0, 1, (6, 8)), jnp.float32)
LABELS = jnp.asarray([0, 0, 1, 1, 2, 2])
VALID = jnp.asarray([True] * 5 + [False])
MAPS = jnp.stack([X, 2 * X, X - 1])  # three images of six positions


def rewritten(function, *args):
  """Returns the shapes of quotients by values that are broadcast."""
  found = []

  def is_program(x):
    return hasattr(x, 'eqns')

  def visit(jaxpr):
    made = {v: e for e in jaxpr.eqns for v in e.outvars}
    for equation in jaxpr.eqns:
      parts = jax.tree.leaves([*equation.params.values()], is_leaf=is_program)
      for part in filter(is_program, parts):
        visit(getattr(part, 'jaxpr', part))
      if equation.primitive.name != 'div':
        continue
      over, under = equation.invars
      source = not isinstance(under, programs.Literal) and made.get(under)
      # Before or by the quotient itself.
      if source and source.primitive.name == 'broadcast_in_dim':
        under = source.invars[0]
      constant = isinstance(under, programs.Literal)
      if not constant and under.aval.size < over.aval.size:
        found.append(over.aval.shape)

  visit(jax.make_jaxpr(function)(*args).jaxpr)
  return found


def slope(function):
  return jax.grad(lambda x: sum(map(jnp.sum, jax.tree.leaves(function(x)))))


def attention(x):
  layer = vit.Attention(2, jnp.float32)
  return layer.init_with_output(jax.random.key(0), x)[0]


def standardised(x):
  ones = jnp.ones(8)
  return norm.standardize(x, ones, ones, VALID)[0]


STEPS = {
  'attention': (attention, X[None]),
  'batch norm': (standardised, X),
  'mmd': (lambda x: cross_modal.mmd(x, x + 1, VALID, VALID), X),
  'triplet': (lambda x: metric.weighted_triplet(x, LABELS, VALID), X),
  'circle': (lambda x: metric.circle(x, LABELS, VALID, 0.3, 8.0), X),
  'warp': (lambda x: alignment.warp(x, 2 * x), MAPS),
}


@pytest.mark.parametrize('name', STEPS)
def test_no_gradient_divides_by_broadcast_values(name):
  function, x = STEPS[name]
  assert rewritten(slope(function), x) == []


def test_no_statistics_divide_by_broadcast_values():
  assert rewritten(lambda x: clusters.jaccard(x, VALID, 3, 2), X) == []
  seen = moments.zeros(3, 8)
  more = rewritten(lambda x: moments.merge(seen, x, LABELS, VALID), X)
  assert more == rewritten(moments.statistics, seen) == []
  drawn = rewritten(hallucination._dirichlet, jax.random.key(0), jnp.ones(3))
  assert drawn == []


def test_quotients_that_may_be_rewritten_are_found():
  assert rewritten(lambda x: x / x.sum(), X) == [(6, 8)]
  assert rewritten(jax.jit(jax.nn.softmax), X) == [(6, 8)]
  assert rewritten(lambda x: x / 3.0 + x / x + 1 / x.sum(), X) == []


def test_a_product_with_the_inverse():
  x, c = X[:4, :6], jnp.full((4, 1), 3.0)
  np.testing.assert_allclose(quotients.divide(x, c), x / 3, rtol=2e-7)
  share = quotients.divide(VALID, VALID.sum())
  assert share.dtype == jnp.float32 and not share.weak_type
  np.testing.assert_allclose(share, [0.2] * 5 + [0])


@pytest.mark.parametrize('axis', [0, 1, -1])
def test_softmax_and_its_gradient(axis):
  rng = np.random.default_rng(0)
  x, weight = rng.normal(0, 9, (2, 5, 7)).astype('f4')
  x[0, 0], x[1, 1] = 300, -np.inf
  y = quotients.softmax(jnp.asarray(x), axis)
  np.testing.assert_allclose(y, jax.nn.softmax(x, axis), rtol=1e-5, atol=1e-30)

  def total(x):
    return (quotients.softmax(x, axis) * weight).sum()

  # In float64: the sums cancel in float32, also those of JAX.
  powers = np.exp(x.astype('f8') - x.max(axis, keepdims=True))
  y = powers / powers.sum(axis, keepdims=True)
  slope = y * (weight - (y * weight).sum(axis, keepdims=True))
  np.testing.assert_allclose(
    jax.grad(total)(jnp.asarray(x)), slope, rtol=1e-5, atol=2e-6
  )


def test_a_row_without_a_finite_value_is_not_a_number():
  assert np.isnan(quotients.softmax(jnp.full((2, 3), -jnp.inf))).all()
