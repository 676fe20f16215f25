"""DP-SGD: what one identity can change."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from private_clients import bound, participants

from fedreid_jax import errors
from fedreid_jax.algorithms import dpsgd, fedpav, fedprox
from fedreid_jax.algorithms.statistics import privacy
from fedreid_jax.core import trees, types
from fedreid_jax.losses import identity, metric
from fedreid_jax.method import contexts
from fedreid_jax.models import networks

FEDPAV = fedpav.make()
UNITS, ROWS, CLIP = 4, 2, 0.05
LABELS = np.repeat(np.arange(UNITS, dtype=np.int32), ROWS)


def of_units(**options):
  """The component for steps of four identities with two images each."""
  people = participants(
    (toy.toy_client('one', 8, UNITS),), identities=UNITS, batch=UNITS * ROWS
  )
  return bound(people, **options)


@pytest.mark.parametrize(
  ('units', 'identities', 'said'),
  [
    (4, 2, ''),
    (4, 4, 'every identity of a client is in every step'),
    (1, 1, 'a client has a single identity'),
  ],
)
def test_units_that_do_not_hide_among_others_are_told(units, identities, said):
  people = participants(
    (toy.toy_client('one', 2 * units, units),),
    identities=identities,
    batch=identities * ROWS,
  )
  notice = bound(people, noise=1.0).notice
  assert said in notice and bool(said) == bool(notice)
  assert ('sampling rate 1' in notice) == (units == identities)


def gradient(made, params, loss, valid, key=0):
  """What the component makes of a loss of rows."""
  batch = types.Batch(*[None] * 4, jnp.asarray(valid))
  ctx = contexts.GradientCtx(batch, loss, jax.random.key(key))
  return made.client.gradient(params, ctx)


# Invariant 6: the plain gradient, groups, padding and empty steps.

CENTRES = jnp.asarray(np.random.default_rng(0).normal(size=(16, 5)), 'f4')


def distances(params, first, size):
  """A loss of rows: half the squared distance to a point each."""
  rows = jax.lax.dynamic_slice_in_dim(CENTRES, first, size)
  each = 0.5 * jnp.square(params['params/a'] - rows).sum(axis=1)
  return each.mean(), {'rows': jnp.float32(size)}


START = {'params/a': jnp.zeros(5), 'params/b': jnp.ones(2)}


@pytest.mark.parametrize('microbatch', [1, 2, 3, 8])
def test_gradients_are_clipped_and_divided_by_p(microbatch):
  made = of_units(noise=0.0, clip=0.5, microbatch=microbatch)
  valid = np.arange(16) < 10  # five identities of two images, P is four
  found, metrics = gradient(made, START, distances, valid)
  each = -np.asarray(CENTRES[:10]).reshape(5, 2, 5).mean(axis=1)
  norms = np.linalg.norm(each, axis=1, keepdims=True)
  assert (norms > 0.5).any() and (norms < 1.9).any()
  wanted = (each * np.minimum(1, 0.5 / norms)).sum(axis=0) / UNITS
  np.testing.assert_allclose(found['params/a'], wanted, rtol=1e-5, atol=1e-7)
  np.testing.assert_array_equal(found['params/b'], 0)
  assert metrics['rows'] == 2


def test_identities_need_not_be_first():
  made = of_units(noise=0.0, clip=0.5)
  valid = np.isin(np.arange(16) // 2, (1, 6))
  found, _ = gradient(made, START, distances, valid)
  own = -np.asarray(CENTRES).reshape(8, 2, 5).mean(axis=1)[[1, 6]]
  own *= np.minimum(1, 0.5 / np.linalg.norm(own, axis=1, keepdims=True))
  np.testing.assert_allclose(found['params/a'], own.sum(axis=0) / 4, rtol=1e-5)


def test_a_gradient_that_is_not_finite_is_zero():
  made = of_units(noise=0.0, clip=0.5)

  def loss(params, first, size):
    value, metrics = distances(params, first, size)
    return jnp.where(first == 2, jnp.nan, 1.0) * value, metrics

  whole, _ = gradient(made, START, loss, np.arange(16) < 6)
  others = np.isin(np.arange(16) // 2, (0, 2))
  without, _ = gradient(made, START, distances, others)
  np.testing.assert_allclose(whole['params/a'], without['params/a'], rtol=1e-6)


def test_an_empty_step_is_noise_of_the_same_size():
  made = of_units(noise=2.0, clip=0.3)
  params = {'params/a': jnp.zeros(60000), 'params/b': jnp.zeros((200, 200))}

  def loss(params, first, size):
    del first, size
    return params['params/a'].sum() + params['params/b'].sum(), {}

  empty, _ = gradient(made, params, loss, np.zeros(16, bool))
  found = np.concatenate([x.ravel() for x in empty.values()])
  assert found.std() == pytest.approx(2.0 * 0.3 / UNITS, rel=0.01)
  assert abs(found.mean()) < 0.003
  a, b = empty['params/a'][:40000], empty['params/b'].ravel()
  other, _ = gradient(made, params, loss, np.zeros(16, bool), key=1)
  assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
  assert abs(np.corrcoef(a, other['params/a'][:40000])[0, 1]) < 0.02
  full, _ = gradient(made, params, loss, np.arange(16) < 2)
  moved = np.concatenate([np.ravel(full[n] - empty[n]) for n in empty])
  assert np.linalg.norm(moved) == pytest.approx(0.3 / UNITS, rel=1e-2)


def test_other_parameters_have_neither_gradient_nor_noise():
  made = of_units(trainable='params/b')
  found, _ = gradient(made, START, distances, np.zeros(16, bool))
  assert [*found] == ['params/b']
  with pytest.raises(errors.ConfigError, match='no parameter has a name like'):
    gradient(of_units(trainable='x'), START, distances, np.zeros(16, bool))


def private_config(**fields):
  config = toy.replaced(
    toy.toy_config(),
    {
      'model.norm': 'group',
      'local.sampler': 'poisson_pk',
      'local.steps': 3,
      'local.identities': 3,
      'local.batch': 6,
      'optim.weight_decay': 0.1,
    },
  )
  return toy.replaced(config, fields)


@pytest.mark.slow
def test_without_noise_and_clip_it_is_the_plain_gradient():
  """All three identities of a client are in every step, since P is three."""
  found = []
  options = dpsgd.Options(noise=0.0, clip=1e9, microbatch=4)
  near = fedprox.make(fedprox.Options(mu=0.5))
  for components in ((FEDPAV, near), (FEDPAV, near, dpsgd.make(options))):
    executor, variables, _ = toy.make_rounds(
      private_config(), toy.toy_clients(), components
    )
    server, states, logs = toy.run(executor, variables, 2)
    found.append((server.shared, states.personal, logs[-1]['metrics']['loss']))
  toy.assert_close_trees(*found, 1e-5)


@pytest.mark.slow
def test_noise_moves_the_models_of_all_clients_apart():
  found = []
  for scale in (0.0, 1.0):
    executor, variables, _ = toy.make_rounds(
      private_config(),
      toy.toy_clients(),
      (FEDPAV, dpsgd.make(dpsgd.Options(noise=scale))),
    )
    found.append(toy.run(executor, variables, 1)[1].personal)
  silent, one = found
  head = 'params/classifier/kernel'
  moved = np.asarray(one[head] - silent[head]).reshape(4, -1)
  assert (np.abs(moved).max(axis=1) > 1e-3).all()
  assert abs(np.corrcoef(moved)[0, 1]) < 0.9


# Invariant 7: what one identity can change, by brute force.


@functools.cache
def network(norm):
  config = toy.replaced(
    toy.toy_config(), {'model.norm': norm, 'model.neck': 'bnneck'}
  )
  model = networks.wrap(networks.build(config.model, UNITS), toy.IMAGE_SHAPE)
  return model, jax.jit(model.init)(jax.random.key(1))


def rows_of(params, images, first, size, norm='group'):
  model, variables = network(norm)
  images = jax.lax.dynamic_slice_in_dim(images, first, size)
  outputs, _ = model.apply(variables | params, images, train=True)
  labels = jax.lax.dynamic_slice_in_dim(jnp.asarray(LABELS), first, size)
  return outputs, labels


def entropy(params, images, first, size):
  outputs, labels = rows_of(params, images, first, size)
  real = jnp.ones(size, bool)
  return identity.cross_entropy(outputs.logits, labels, real, 0.0), {}


@functools.cache
def own_sum():
  """The sum before the noise, without those of some identities."""
  made = of_units(noise=0.0, clip=CLIP)
  params, _ = trees.trainable(network('group')[1])

  @jax.jit
  def total(images, used):
    loss = functools.partial(_entropy, images)
    valid = jnp.repeat(used, ROWS)
    found, _ = gradient(made, params, loss, jnp.pad(valid, (0, 8)))
    return {n: UNITS * x for n, x in found.items()}

  return total


def _entropy(images, params, first, size):
  return entropy(params, images, jnp.minimum(first, 6), size)


def clipped_parts(losses, params, keep='params/'):
  """The sum of clipped gradients of identities that share a batch."""
  each = jax.jacrev(losses)(params)
  chosen = {n: x for n, x in each.items() if n.startswith(keep)}
  rest = {n: x.sum(axis=0) for n, x in each.items() if n not in chosen}
  bounded, _ = jax.vmap(privacy.clipped, (0, None))(chosen, jnp.float32(CLIP))
  return {n: x.sum(axis=0) for n, x in bounded.items()} | rest


def broken_sum(kind):
  """A sum that clips as well, and that one identity changes without bound."""
  norm = 'batch' if kind == 'batch norm' else 'group'
  params, _ = trees.trainable(network(norm)[1])

  @jax.jit
  def total(images, used):
    del used

    def losses(params):
      outputs, labels = rows_of(params, images, 0, UNITS * ROWS, norm)
      if kind == 'triplet':
        distance = metric.pairwise_distance(outputs.embedding)
        same = labels[:, None] == labels[None]
        positive = jnp.where(same, distance, 0.0).max(axis=1)
        negative = jnp.where(same, metric.FAR, distance).min(axis=1)
        rows = jax.nn.softplus(positive - negative)
      else:
        scores = jax.nn.log_softmax(outputs.logits)
        rows = -scores[jnp.arange(UNITS * ROWS), labels]
      return rows.reshape(UNITS, ROWS).mean(axis=1)

    keep = 'params/backbone' if kind == 'head' else 'params/'
    return clipped_parts(losses, params, keep)

  return total


def largest_change(total, without=False):
  """The largest change of a sum by the pixels of one identity, in clips."""
  rng = np.random.default_rng(0)
  images = rng.normal(size=(UNITS * ROWS, *toy.IMAGE_SHAPE)).astype('f4')
  used, found = jnp.ones(UNITS, bool), []
  before = total(images, used)
  for trial in range(12):
    other = np.array(images)
    shape = other[:ROWS].shape
    other[:ROWS] = 10.0 ** (trial % 3 - 1) * rng.normal(size=shape)
    after = total(images if without else other, used)
    if without:
      after = total(images, used.at[trial % UNITS].set(False))
    moved = [np.ravel(after[n] - before[n]) for n in before]
    found.append(float(np.linalg.norm(np.concatenate(moved))))
  return max(found) / CLIP


def test_one_identity_moves_the_sum_by_the_clip():
  assert 0.5 < largest_change(own_sum()) <= 2 * (1 + 1e-4)
  assert 0.5 < largest_change(own_sum(), without=True) <= 1 + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['triplet', 'batch norm', 'head'])
def test_the_search_finds_what_has_no_bound(kind):
  assert largest_change(broken_sum(kind)) > 2.05


def test_without_clients_there_is_no_gradient():
  made = dpsgd.make()
  with pytest.raises(errors.InternalError, match='before it knows'):
    gradient(made, START, distances, np.zeros(16, bool))


def test_images_are_units_of_their_own():
  people = participants(sampler='poisson', batch=4)
  made = bound(people, unit='image', noise=0.0, clip=0.5)
  found, _ = gradient(made, START, distances, np.arange(8) < 3)
  each = -np.asarray(CENTRES[:3])
  each *= np.minimum(1, 0.5 / np.linalg.norm(each, axis=1, keepdims=True))
  np.testing.assert_allclose(found['params/a'], each.sum(0) / 4, rtol=1e-5)
