import functools

import dacs_by_hand
import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from dacs_by_hand import (
  ARRAYS,
  HEAD,
  KERNEL,
  LABELS,
  LOCAL,
  LR,
  MEAN,
  SHAPE,
  VARIABLES,
  batch,
)

from fedreid_jax import algorithms
from fedreid_jax.algorithms import dacs
from fedreid_jax.core.types import Batch
from fedreid_jax.losses import identity
from fedreid_jax.method.component import Participants
from fedreid_jax.method.contexts import LossCtx, RoundCtx, StepCtx
from fedreid_jax.round import compose

MADE = dacs.make().bind(Participants((), 0, 1, image_shape=SHAPE))


def objective(outputs, batch):
  value = identity.cross_entropy(outputs.logits, batch.labels, batch.valid)
  return value, {}


def fields(round_, poison=0.0):
  return dacs_by_hand.fields(round_, objective, poison=poison)


def start(round_=1):
  ctx = handmade.context(RoundCtx, **{'optimizer': fields(0)['optimizer']})
  return MADE.client.round_start(dacs.Kept(LOCAL, ARRAYS), ctx)


@functools.cache
def step(round_=1, lam=1.0, poison=0.0):
  """(state after `pre_step`, aux, loss, its gradient, metrics)."""
  made = dacs.make(dacs.Options(lam=lam)).bind(Participants((), 0, 1))
  given = fields(round_, poison)
  state, aux = made.client.pre_step(start(), handmade.context(StepCtx, **given))

  def loss(variables):
    model = given['model']
    ctx = handmade.context(
      LossCtx,
      **given | {'variables': variables},
      aux=aux,
      classify=lambda x: model.classify(variables, x, 3),
    )
    return made.client.loss(variables, state, ctx)

  (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(VARIABLES)
  return state, aux, value, grads, metrics


def in_pytorch(lam=1.0):
  """One step as the released code takes it, with linear networks.

  Returns gradients of G and of the classifier without those of the original
  images, the new local kernel, s and t, and the parts of the loss.
  """
  torch = pytest.importorskip('torch', reason='pip install torch')
  cross_entropy = torch.nn.functional.cross_entropy

  def leaf(x):
    return torch.tensor(np.array(x)).requires_grad_()

  x, labels = torch.tensor(np.array(batch().images[:4])), LABELS[:4].tolist()
  labels = torch.tensor(labels)
  kernel, head, local = leaf(VARIABLES[KERNEL]), leaf(VARIABLES[HEAD]), None
  local, running = leaf(LOCAL[KERNEL]), torch.tensor(np.array(VARIABLES[MEAN]))
  scale, shift = leaf(ARRAYS[dacs.SCALE]), leaf(ARRAYS[dacs.SHIFT])

  # Stage 1: the local model, by its own optimiser.
  own = cross_entropy(x.reshape(4, -1) @ local @ head, labels)
  (grad,) = torch.autograd.grad(own, local)
  local = (local - LR * grad).detach()

  # Stage 2.
  mean = x.mean((1, 2), keepdim=True)
  var = x.var((1, 2), keepdim=True, unbiased=False)
  made = scale * (x - mean) / (var.sqrt() + 1e-8) + shift
  frozen = kernel.detach()

  def entropy(embedding):
    p = torch.softmax(embedding @ head, dim=1)
    return -(p * p.log()).sum() / len(p)

  augmented = entropy(made.reshape(4, -1) @ frozen - running)
  original = entropy(x.reshape(4, -1) @ frozen - running)
  hard = entropy(made.reshape(4, -1) @ local)
  ranking = torch.nn.SoftMarginLoss()
  one = torch.ones(())
  auth = ranking(augmented - original, one) + ranking(hard - augmented, one)
  aug = cross_entropy(made.reshape(4, -1) @ kernel @ head, labels)
  mse = torch.nn.functional.mse_loss
  wide = torch.zeros_like(x)
  diversity = -mse(shift + wide, mean + wide) - mse(scale**2 + wide, var + wide)
  total = aug + diversity + lam * auth
  grads = torch.autograd.grad(total, [kernel, head, scale, shift])
  return {
    KERNEL: grads[0],
    HEAD: grads[1],
    'local': local,
    dacs.SCALE: (scale - LR * grads[2]).detach(),
    dacs.SHIFT: (shift - LR * grads[3]).detach(),
    'transformed': aug.detach(),
    'authenticity': auth.detach(),
    'diversity': diversity.detach(),
  }


@pytest.mark.parametrize('lam', [1.0, 0.0, 3.0])
def test_a_step_equals_that_of_the_released_code(lam):
  wanted = in_pytorch(lam)
  state, _, value, grads, metrics = step(lam=lam)
  for name in (KERNEL, HEAD):
    np.testing.assert_allclose(grads[name], wanted[name], atol=1e-5)
  for name in (dacs.SCALE, dacs.SHIFT):
    found = state.kept.transformation[name]
    np.testing.assert_allclose(found, wanted[name], atol=1e-5)
    assert abs(found - ARRAYS[name]).max() > 1e-4
  np.testing.assert_allclose(
    state.kept.local[KERNEL], wanted['local'], atol=1e-5
  )
  for name in ('transformed', 'authenticity'):
    np.testing.assert_allclose(metrics[name], wanted[name], atol=1e-5)
  np.testing.assert_allclose(-metrics['diversity'], wanted['diversity'], 1e-4)
  total = wanted['transformed'] + lam * wanted['authenticity']
  np.testing.assert_allclose(value, total, atol=1e-5)


@pytest.mark.slow
def test_the_order_of_the_entropies_matters():
  """A mutant that exchanges both models is seen."""
  _, aux, _, _, metrics = step()
  ctx = handmade.context(StepCtx, **fields(1))

  def classify(x):
    return x @ VARIABLES[HEAD]

  @jax.jit
  def authenticity(order):
    return dacs._authenticity(aux.embeddings[order], classify, ctx)

  right = authenticity(jnp.arange(3))
  np.testing.assert_allclose(right, metrics['authenticity'], rtol=1e-6)
  for order in ((1, 0, 2), (2, 1, 0), (0, 2, 1)):
    assert abs(authenticity(jnp.array(order)) - right) > 1e-3


def test_a_worked_transformation():
  """Pixels -1 and 1 of an image of mean 5 and deviation 2, scaled by 3."""
  x = jnp.array([3.0, 7, 3, 7]).reshape(1, *SHAPE)
  column = jnp.zeros(1, jnp.int32)
  one = Batch(x, column, column, column, column == 0)
  ctx = handmade.context(StepCtx, **fields(1) | {'batch': one})
  arrays = {dacs.SCALE: jnp.full(SHAPE, 3.0), dacs.SHIFT: jnp.full(SHAPE, 0.5)}
  made = dacs._transform(arrays, LOCAL, ctx)
  np.testing.assert_allclose(made.images.ravel(), [-2.5, 3.5, -2.5, 3.5])
  # -(0.5 - 5)^2 - (3^2 - 4)^2.
  np.testing.assert_allclose(made.diversity, -45.25)


def test_in_the_first_round_only_the_local_model_learns():
  state, _, value, grads, _ = step(round_=0)
  assert value == 0 and not any(x.any() for x in grads.values())
  for name, before in ARRAYS.items():
    np.testing.assert_array_equal(state.kept.transformation[name], before)
  assert (state.kept.local[KERNEL] != LOCAL[KERNEL]).any()


@pytest.mark.parametrize('poison', [jnp.nan, 7.0])
def test_padded_images_change_nothing(poison):
  clean, poisoned = step(), step(poison=float(poison))
  for a, b in ((clean[0], poisoned[0]), (clean[2:], poisoned[2:])):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_client_keeps_its_model_without_classifier_and_two_arrays():
  kept = MADE.client.init(jax.random.key(0), VARIABLES)
  assert kept.local.keys() == {KERNEL, MEAN}
  assert kept.transformation[dacs.SCALE].shape == SHAPE
  many = dacs.make().bind(Participants((), 0, 1, image_shape=(64, 32, 3)))
  arrays = many.client.init(jax.random.key(0), VARIABLES).transformation
  np.testing.assert_allclose(arrays[dacs.SCALE].mean(), 1, atol=0.01)
  for name, x in arrays.items():
    np.testing.assert_allclose(x.std(), 0.1, rtol=0.05, err_msg=name)
  other = many.client.init(jax.random.key(1), VARIABLES).transformation
  assert (other[dacs.SHIFT] != arrays[dacs.SHIFT]).all()


@pytest.mark.slow
def test_transformations_are_trained_and_stay(config, clients):
  config = toy.replaced(config, {'local.sampler': 'pk'})
  chosen = compose.load(('fedpav', 'dacs'), {}, algorithms)
  executor, variables, _ = toy.make_rounds(config, clients[:3], chosen)
  server, states, logs = toy.run(executor, variables, 2)
  kept = states.states['dacs']
  for x in kept.transformation.values():
    assert x.shape == (3, *toy.IMAGE_SHAPE)
  assert not any('style' in name for name in server.shared)
  # The local models are their own: neither the server's nor each other's.
  for name, x in kept.local.items():
    if name.startswith('params/'):
      assert (x[0] != x[1]).any() and (x[0] != server.shared[name][0]).any()
  first, second = (log['metrics'] for log in logs)
  assert first['loss'] == pytest.approx(first['identity'], rel=1e-5)
  assert second['loss'] > second['identity']
  assert second['dacs_authenticity'] == pytest.approx(2 * np.log(2), rel=0.5)
