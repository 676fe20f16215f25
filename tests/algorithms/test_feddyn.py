import handmade
import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.algorithms import feddyn, fedpav
from fedreid_jax.method.contexts import AggregationCtx, LossCtx, RoundEndCtx

KERNEL, HEAD, MEAN = handmade.KERNEL, handmade.HEAD, handmade.MEAN
MADE = feddyn.make(feddyn.Options(alpha=0.5))


def test_gradient_of_the_loss():
  """-g + alpha (w - w^t) on shared parameters, nothing on personal ones."""
  received = {KERNEL: handmade.variables(3.0)[KERNEL]}
  ctx = handmade.context(LossCtx, received=received)
  state = handmade.variables(0.25, 9.0)
  grads = jax.grad(lambda v: MADE.client.loss(v, state, ctx)[0])(
    handmade.variables(8.0, 9.0, 7.0)
  )
  np.testing.assert_allclose(grads[KERNEL], -0.25 + 0.5 * (8 - 3))
  assert not grads[HEAD].any() and not grads[MEAN].any()


def test_worked_state_of_a_client():
  ctx = handmade.context(
    RoundEndCtx,
    received={KERNEL: handmade.variables(3.0)[KERNEL]},
    variables=handmade.variables(8.0, 9.0),
  )
  own = {n: handmade.variables(1.0, 0.0)[n] for n in (KERNEL, HEAD)}
  state, message = MADE.client.round_end(own, ctx)
  np.testing.assert_allclose(state[KERNEL], 1.0 - 0.5 * (8 - 3))
  assert not state[HEAD].any() and message == ()


def test_two_rounds_of_the_server():
  """Two of two clients: h is the mean gradient, running statistics a mean."""
  rng = np.random.default_rng(0)
  shapes = {KERNEL: (2, 3, 2), MEAN: (2, 2)}
  rounds = [
    handmade.uploads(
      {n: rng.standard_normal(s) for n, s in shapes.items()}, [1, 3]
    )
    for _ in range(2)
  ]
  server, _ = handmade.serve(
    (fedpav.make(), MADE), handmade.variables(1.0), *rounds
  )
  weights, h = np.ones((3, 2)), 0.0
  for uploads in rounds:
    mean = np.asarray(uploads.shared[KERNEL], 'f8').mean(0)
    h = h - 0.5 * (mean - weights)
    weights = mean - h / 0.5
  np.testing.assert_allclose(server.shared[KERNEL][0], weights, atol=1e-5)
  wanted = np.asarray(rounds[1].shared[MEAN]).mean(0)
  np.testing.assert_allclose(server.shared[MEAN][0], wanted, atol=1e-6)


CURVE, BEST = jnp.array([1.0, 4.0]), jnp.array([-1.0, 2.0])


@jax.jit
def dynamic_round(w, states, server):
  """A round of two clients with losses CURVE / 2 (w - BEST)^2, 50 steps."""

  def client(state, curve, best):
    ctx = handmade.context(LossCtx, received={KERNEL: w})

    def loss(v):
      plain = 0.5 * curve * ((v[KERNEL] - best) ** 2).sum()
      return plain + MADE.client.loss(v, state, ctx)[0]

    def step(_, v):
      return {KERNEL: v[KERNEL] - 0.1 * jax.grad(loss)(v)[KERNEL]}

    end = jax.lax.fori_loop(0, 50, step, {KERNEL: w})
    ctx = handmade.context(RoundEndCtx, received={KERNEL: w}, variables=end)
    return MADE.client.round_end(state, ctx)[0], end[KERNEL]

  states, ends = jax.vmap(client)(states, CURVE, BEST)
  ctx = handmade.context(
    AggregationCtx, valid=jnp.array([True, True]), start={KERNEL: w[None]}
  )
  mean = {KERNEL: ends.mean(0)[None]}
  server, models = MADE.server.update(server, mean, ctx)
  return models[KERNEL][0], states, server


def test_the_fixed_point_is_the_optimum_of_the_mean_loss():
  """The mean of models alone ends elsewhere, after 50 local steps."""
  optimum = float((CURVE * BEST).sum() / CURVE.sum())
  w, states = jnp.zeros(1), {KERNEL: jnp.zeros((2, 1))}
  server = {KERNEL: jnp.zeros((1, 1))}, jnp.float32(2.0)
  for _ in range(100):
    w, states, server = dynamic_round(w, states, server)
  np.testing.assert_allclose(w, optimum, atol=1e-3)
  assert abs(float(BEST.mean()) - optimum) > 0.5
  # The gradients that clients keep are those at the optimum, and sum to zero.
  kept = np.asarray(states[KERNEL])[:, 0]
  np.testing.assert_allclose(kept, CURVE * (optimum - BEST), atol=1e-2)


def test_a_round_without_uploads_leaves_the_model():
  state = {KERNEL: jnp.full((1, 2), 3.0)}, jnp.float32(2.0)
  start = {KERNEL: jnp.ones((1, 2))}
  ctx = handmade.context(
    AggregationCtx, valid=jnp.array([False, False]), start=start
  )
  (mean, _), models = MADE.server.update(state, start, ctx)
  np.testing.assert_array_equal(models[KERNEL], start[KERNEL])
  np.testing.assert_array_equal(mean[KERNEL], 3.0)
