"""SSCU: one step in NumPy, and the memory within a round."""

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
  REAL,
  VARIABLES,
  batch,
  normal,
)

from fedreid_jax.algorithms import dacs, sscu
from fedreid_jax.algorithms.statistics import memory
from fedreid_jax.core import trees
from fedreid_jax.losses import metric
from fedreid_jax.method.component import Participants
from fedreid_jax.method.contexts import (
  LossCtx,
  RoundCtx,
  StepCtx,
)

MARGIN, TAU, KEPT = 0.5, 0.2, 0.9
OPTIONS = sscu.Options(lam=3.0, temperature=TAU, momentum=KEPT, every=2)
ROWS = metric.unit(normal(8, 3, 2))


def objective(outputs, batch):
  """That of the recipe: without cross-entropy."""
  on = outputs.embedding, batch.labels, batch.valid
  return metric.hard_triplet(*on, MARGIN), {}


def step(round_=1, options=OPTIONS, poison=0.0, rows=ROWS, head=None):
  """Returns (state after `pre_step`, loss of G, its gradient, metrics)."""
  variables = VARIABLES if head is None else VARIABLES | {HEAD: head}
  # Compiled as one program, which takes a fraction of the time.
  return jax.jit(functools.partial(_step, round_, options))(
    variables, poison, rows
  )


def _step(round_, options, variables, poison, rows):
  given = dacs_by_hand.fields(round_, objective, variables, poison)
  client = sscu.make(options).bind(Participants((), 0, 1)).client
  start = client.round_start(
    sscu.Kept(dacs.Kept(LOCAL, ARRAYS), rows, ()),
    handmade.context(RoundCtx, optimizer=given['optimizer']),
  )
  state, aux = client.pre_step(start, handmade.context(StepCtx, **given))
  model, task = given['model'], given['task']

  def loss(variables):
    outputs, _ = model.apply(
      variables,
      given['batch'].images,
      train=True,
      mask=given['batch'].valid,
      num_identities=task.num_identities,
    )
    ctx = handmade.context(
      LossCtx,
      **given | {'variables': variables},
      outputs=outputs,
      aux=aux,
      classify=lambda x: model.classify(variables, x, task.num_identities),
    )
    # As the engine adds them.
    extra, metrics = client.loss(variables, state, ctx)
    return objective(outputs, given['batch'])[0] + extra, metrics

  (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(variables)
  return state, value, grads, metrics


# A step in NumPy, whose gradients are differences of its losses.


def unit(x):
  return x / np.linalg.norm(x, axis=-1, keepdims=True)


def log_softmax(x):
  x = x - x.max(axis=1, keepdims=True)
  return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def entropy_of_labels(scores, labels):
  return -log_softmax(scores)[np.arange(len(labels)), labels].mean()


def uncertainty(scores):
  log_p = log_softmax(scores)
  return -(np.exp(log_p) * log_p).sum(axis=1).mean()


def triplet(x, labels):
  apart = np.linalg.norm(x[:, None] - x[None], axis=2)
  same = labels[:, None] == labels[None]
  far = np.where(same, apart, 0).max(axis=1)
  near = np.where(same, np.inf, apart).min(axis=1)
  return np.maximum(far - near + MARGIN, 0).mean()


def slope(loss, at):
  found, step_ = np.zeros_like(at), 1e-5
  for place in np.ndindex(at.shape):
    moved = [at.copy(), at.copy()]
    moved[0][place] += step_
    moved[1][place] -= step_
    found[place] = (loss(moved[0]) - loss(moved[1])) / (2 * step_)
  return found


def double(x):
  return np.asarray(x, np.float64)


def embed(kernel, images):
  return images.reshape(REAL, -1) @ kernel


def restyled(x, scale, shift):
  m, v = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
  return scale * (x - m) / (np.sqrt(v) + 1e-8) + shift


def moved(rows, features, labels):
  rows = rows.copy()
  for feature, label in zip(unit(features), labels, strict=True):
    rows[label] = unit(KEPT * rows[label] + (1 - KEPT) * feature)
  return rows


def in_numpy(round_, lam):
  """The parts of a step, in the order of the docstring."""
  x, labels = double(batch().images[:REAL]), LABELS[:REAL]
  kernel, head, mean = (double(VARIABLES[n]) for n in (KERNEL, HEAD, MEAN))
  scale, shift = double(ARRAYS[dacs.SCALE]), double(ARRAYS[dacs.SHIFT])
  rows = double(ROWS)

  def remembered(kernel, rows):
    f = embed(kernel, x)
    return entropy_of_labels(unit(f) @ rows.T / TAU, labels) + triplet(
      f, labels
    )

  local = double(LOCAL[KERNEL])
  local = local - LR * slope(lambda k: remembered(k, rows), local)
  m, v = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
  copy = moved(rows, embed(kernel, restyled(x, scale, shift)), labels)

  def total(kernel_, head, scale, shift):
    plain = remembered(kernel_, copy)
    if round_ == 0:
      return plain
    made = restyled(x, scale, shift)
    f = embed(kernel_, made)
    augmented = entropy_of_labels(f @ head, labels) + triplet(f, labels)
    # H_G of a copy of G that does not change, H_L of the trained L.
    easy, hard = (
      uncertainty((embed(kernel, images) - mean) @ head) for images in (x, made)
    )
    # L is in training mode, in which the linear network subtracts no mean.
    local_ = uncertainty(embed(local, made) @ head)
    softplus = [np.log1p(np.exp(d)) for d in (easy - hard, hard - local_)]
    diversity = ((shift - m) ** 2).mean() + ((scale**2 - v) ** 2).mean()
    return plain + augmented - diversity + lam * sum(softplus)

  at = [kernel, head, scale, shift]

  def of(place):
    def loss(value):
      return total(*at[:place], value, *at[place + 1 :])

    return slope(loss, at[place])

  slopes = [of(place) for place in range(4)]
  # L_div belongs to s and t alone, whose hook has it.
  kept = total(*at)
  if round_:
    kept += ((shift - m) ** 2).mean() + ((scale**2 - v) ** 2).mean()
  return {
    'local': local,
    'memory': copy,
    'loss': kept,
    KERNEL: slopes[0],
    HEAD: slopes[1],
    dacs.SCALE: scale - LR * slopes[2],
    dacs.SHIFT: shift - LR * slopes[3],
  }


@functools.cache
def wanted(round_, lam=3.0):
  return in_numpy(round_, lam)


def error(round_, options=OPTIONS):
  """The largest difference between a step and that in NumPy."""
  state, value, grads, _ = step(round_, options)
  styles = state.styles.kept
  found = {
    'local': styles.local[KERNEL],
    'memory': state.copy,
    'loss': value,
    **{n: grads[n] for n in (KERNEL, HEAD)},
    **styles.transformation,
  }
  right = wanted(round_)
  assert found.keys() == right.keys()
  return max(np.abs(found[n] - right[n]).max() for n in right)


@pytest.mark.parametrize('round_', [0, 1])
def test_a_step_equals_that_in_numpy(round_):
  assert error(round_) < 2e-4
  state, *_ = step(round_)
  # The copy moves in round 0 as well; what the client keeps does not.
  assert (state.copy != ROWS).any()
  np.testing.assert_array_equal(state.memory, ROWS)


def _backwards(rows, features, labels, counts, kept):
  back = slice(None, None, -1)
  return REMEMBER(rows, features[back], labels[back], counts[back], kept)


def _not_at_all(rows, *_):
  return rows


REMEMBER, STEP = memory.remember, dacs.step
MUTANTS = {
  'memory that does not move': (memory, 'remember', _not_at_all),
  'samples in another order': (memory, 'remember', _backwards),
  'losses of the wrong networks': (
    dacs,
    'step',
    lambda lam, losses, *rest: STEP(lam, dacs.Losses(*losses[::-1]), *rest),
  ),
  'no entropy of transformed images': (
    sscu,
    '_transformed',
    lambda ctx: ctx.objective,
  ),
}


@pytest.mark.parametrize('mutant', MUTANTS)
def test_mutants_are_seen(mutant, monkeypatch):
  assert error(1) < 2e-4
  monkeypatch.setattr(*MUTANTS[mutant])
  assert error(1) > 1e-3


@pytest.mark.parametrize(
  'change', [{'momentum': 0.1}, {'temperature': 0.3}, {'lam': 1.0}]
)
def test_every_option_matters(change):
  given = {'lam': 3.0, 'temperature': TAU, 'momentum': KEPT} | change
  assert error(1, sscu.Options(**given)) > 1e-3


def test_a_worked_update_of_the_memory():
  """Half of (1, 0) and half of (0, 1), then half of that and of (1, 0)."""
  rows = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
  features = jnp.array([[0.0, 2.0], [3.0, 0.0], [jnp.nan, 0.0]])
  labels, counts = jnp.array([0, 0, 1]), jnp.array([True, True, False])
  moved = memory.remember(rows, features, labels, counts, 0.5)
  # At 45 degrees after the first, and at half of this after the second.
  angle = np.pi / 8
  np.testing.assert_allclose(
    moved, [[np.cos(angle), np.sin(angle)], [0, 1], [0, 0]], atol=1e-6
  )
  other = memory.remember(rows, features[::-1], labels, counts, 0.5)
  assert not np.allclose(other[0], moved[0])


def test_the_copy_of_a_round_is_the_memory_after_the_list_of_its_features():
  """Batch by batch, as in the round, and at once, as the released code."""
  features, labels = normal(10, 8, 2), jnp.arange(8) % 3
  real = jnp.arange(8) % 4 < 3
  copy = ROWS
  for part in (slice(0, 4), slice(4, 8)):
    copy = memory.remember(copy, features[part], labels[part], real[part], KEPT)
  at_once = memory.remember(ROWS, features, labels, real, KEPT)
  np.testing.assert_array_equal(copy, at_once)


def test_a_worked_loss_of_the_memory():
  """Cosines 0.6 and 0.8 at temperature 0.2, and no row without images."""
  rows = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
  used, counts = jnp.array([True, True, False]), jnp.array([True, False])
  features = jnp.array([[3.0, 4.0], [jnp.nan, 1.0]])
  scores = memory.scores(rows, features, used, counts, 0.2)
  np.testing.assert_allclose(scores[0], [3, 4, -np.inf], rtol=1e-6)
  assert not scores[1].any()


@pytest.mark.parametrize('poison', [jnp.nan, 7.0])
def test_padded_images_change_nothing(poison):
  clean, poisoned = step(), step(poison=float(poison))
  jax.tree.map(np.testing.assert_array_equal, clean, poisoned)


def test_padded_identities_change_nothing():
  state, value, grads, metrics = step()
  rows = jnp.pad(ROWS, ((0, 2), (0, 0)))
  head = jnp.pad(VARIABLES[HEAD], ((0, 0), (0, 2)), constant_values=9.0)
  more, again, slopes, told = step(rows=rows, head=head)
  toy.assert_close_trees(
    (value, grads[KERNEL], metrics, state.copy),
    (again, slopes[KERNEL], told, more.copy[:3]),
    1e-6,
  )
  assert not more.copy[3:].any() and not slopes[HEAD][:, 3:].any()


def test_an_identity_without_images_is_no_candidate():
  rows = ROWS.at[2].set(0)
  used, counts = jnp.array([True, True, False]), jnp.ones(4, bool)
  scores = memory.scores(rows, normal(9, 4, 2), used, counts, TAU)
  assert (jax.nn.softmax(scores)[:, 2] == 0).all()
  # Of a memory without any identity as well, all is finite.
  for given in (rows, jnp.zeros_like(rows)):
    state, value, grads, metrics = step(rows=given)
    assert trees.all_finite((state.copy, value, grads, metrics))
