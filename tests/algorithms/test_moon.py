import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.algorithms import moon
from fedreid_jax.core import types
from fedreid_jax.method.contexts import LossCtx, RoundEndCtx

# One image of pixel values (1, 0, 0) shows the first row of a kernel.
IMAGE = [[10, 0, 0]]


def model(row):
  """Variables whose feature of `IMAGE` is `row`."""
  kernel = jnp.zeros((3, 2)).at[0].set(jnp.asarray(row, jnp.float32))
  return handmade.variables(kernel)


def contrast(z, sent, past, has_past=True, images=IMAGE, valid=None, **made):
  """(Loss, contrast) of a batch that the model in training sees as `z`."""
  ctx = handmade.context(
    LossCtx,
    model=handmade.LINEAR,
    batch=handmade.batch(images, valid),
    outputs=types.Outputs(None, jnp.asarray(z, jnp.float32), None),
    received={handmade.KERNEL: sent[handmade.KERNEL]},
  )
  state = past, jnp.bool_(has_past)
  loss, metrics = moon.make(moon.Options(**made)).client.loss(
    model([9, 9]), state, ctx
  )
  return float(loss), float(metrics['contrast'])


@pytest.mark.parametrize(
  'sent, past, near, far',
  [
    ([3, 4], [0, 5], 0.6, 0.0),
    ([0, 1], [7, 0], 0.0, 1.0),
    ([1, 0], [-2, 0], 1, -1),
  ],
)
def test_worked_cosines(sent, past, near, far):
  """z = (2, 0); the loss is -log softmax of the two cosines over T."""
  for temperature in (0.5, 2.0):
    top, bottom = np.exp(near / temperature), np.exp(far / temperature)
    expected = -np.log(top / (top + bottom))
    loss, value = contrast(
      [[2, 0]], model(sent), model(past), mu=3.0, temperature=temperature
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(loss, 3 * expected, rtol=1e-5)


def test_default_temperature_is_a_half():
  _, value = contrast([[2, 0]], model([3, 4]), model([0, 5]))
  np.testing.assert_allclose(value, 0.263282, rtol=1e-5)  # log(1 + e^-1.2)


def test_padded_rows_do_not_count():
  args = model([3, 4]), model([0, 5])
  one = contrast([[2, 0]], *args)
  two = contrast([[2, 0], [0, 7]], *args, images=IMAGE * 2, valid=[True, False])
  assert one == two


def test_first_participation_has_no_past():
  component = moon.make()
  start = model([1, 2])
  past, has_past = component.client.init(jax.random.key(0), start)
  assert contrast([[2, 0]], model([3, 4]), past, has_past) == (0.0, 0.0)


def test_the_end_of_a_participation_is_the_past_of_the_next():
  ended = handmade.variables(1.0, 2.0, 3.0)
  ctx = handmade.context(RoundEndCtx, variables=ended, start=model([1, 2]))
  (past, has_past), message = moon.make().client.round_end(
    (model([0, 0]), False), ctx
  )
  assert past is ended and has_past and message == ()


def test_references_are_frozen_and_use_the_moments_of_the_batch():
  """Padded images have no part in the moments."""
  past, shown = model([0, 5]), []

  def measure(variables, images, *, mask, **rest):
    shown.append(mask.tolist())
    return handmade.LINEAR.measure(variables, images, mask=mask, **rest)

  network = handmade.LINEAR._replace(apply=None, measure=measure)

  def loss(variables, past):
    ctx = handmade.context(
      LossCtx,
      model=network,
      batch=handmade.batch(IMAGE),
      outputs=types.Outputs(None, jnp.array([[2.0, 0.0]]), None),
      received={},
    )
    return moon.make().client.loss(variables, (past, True), ctx)[0]

  grads = jax.grad(loss, argnums=(0, 1))(model([3, 4]), past)
  assert shown == [[True], [True]]
  assert not any(g.any() for g in jax.tree.leaves(grads))


def test_embedding_gets_the_gradient():
  """It leaves the past and approaches the server's feature."""

  def loss(z):
    ctx = handmade.context(
      LossCtx,
      model=handmade.LINEAR,
      batch=handmade.batch(IMAGE),
      outputs=types.Outputs(None, z, None),
      received={handmade.KERNEL: model([0, 1])[handmade.KERNEL]},
    )
    past = model([0, -1]), jnp.bool_(True)
    return moon.make().client.loss(model([0, 1]), past, ctx)[0]

  pull = jax.grad(loss)(jnp.array([[1.0, 0.0]]))
  # cosines of (1, 0) turn by z_g - z_p = (0, 2) over T, times the sigmoid 1/2
  np.testing.assert_allclose(pull, [[0.0, -2.0]], atol=1e-6)
