import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import trees
from fedreid_jax.method import batch_stats
from fedreid_jax.models import networks
from fedreid_jax.round import cohort, compose


def of(x):
  return {
    'neck/bn': batch_stats.BatchMoments(
      jnp.float32(len(x)), jnp.asarray(x.mean(0)), jnp.asarray(x.var(0))
    )
  }


def test_pooled_moments_are_those_of_all_images():
  """Batches of other sizes and means: the variance between them counts."""
  rng = np.random.default_rng(0)
  parts = [rng.normal(5 * k, 1 + k, (n, 3)) for k, n in enumerate((2, 7, 1))]
  parts = [p.astype(np.float32) for p in parts]
  found = batch_stats.pool([of(p) for p in parts])['neck/bn']
  every = np.concatenate(parts)
  assert found.count == 10
  np.testing.assert_allclose(found.mean, every.mean(0), rtol=1e-5)
  np.testing.assert_allclose(found.var, every.var(0), rtol=1e-5)


def test_nothing_merged_with_something_is_that():
  x = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
  none = batch_stats.zeros(lambda: (None, of(x)))
  found = batch_stats.merge(none, of(x))['neck/bn']
  np.testing.assert_allclose(found.mean, x.mean(0), rtol=1e-6)
  np.testing.assert_allclose(found.var, x.var(0), rtol=1e-6)
  empty = batch_stats.merge(none, none)['neck/bn']
  assert np.isfinite(empty.mean).all() and empty.count == 0


@pytest.mark.parametrize('count, replaced', [(0, False), (1, False), (2, True)])
def test_one_image_has_no_moments(count, replaced):
  variables = {
    'params/w': jnp.ones(2),
    'batch_stats/neck/bn/mean': jnp.zeros(2),
    'batch_stats/neck/bn/var': jnp.ones(2),
  }
  layers = {
    'neck/bn': batch_stats.BatchMoments(
      jnp.float32(count), jnp.full(2, 3.0), jnp.full(2, 4.0)
    )
  }
  out = batch_stats.install(variables, layers)
  assert (out['batch_stats/neck/bn/mean'][0] == 3.0) == replaced
  assert (out['batch_stats/neck/bn/var'][0] == 4.0) == replaced
  assert out['params/w'] is variables['params/w']


@pytest.mark.parametrize(
  'fields',
  [
    {},
    pytest.param(
      {
        'name': 'resnet18',
        'width': 0.125,
        'small_stem': True,
        'modality_specific_stages': 1,
      },
      marks=pytest.mark.slow,
    ),
    {'neck': 'bottleneck', 'bottleneck': 6},
  ],
  ids=str,
)
def test_installed_moments_of_a_batch_give_that_batch_its_own_outputs(fields):
  """Evaluation with them equals measuring; padded images do not count."""
  config = toy.replaced(toy.toy_config().model, fields)
  model = networks.wrap(networks.build(config, 3), (16, 16, 1))
  variables = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
  rng = np.random.default_rng(1)
  images = np.float32(rng.standard_normal((8, 16, 16, 1)))
  images[6:] = 1e6
  given = {'mask': np.arange(8) < 6, 'modalities': np.arange(8) % 2}
  apply = jax.jit(model.apply, static_argnames='train')
  measured, layers = jax.jit(model.measure)(variables, images, **given)
  installed = batch_stats.install(variables, layers)
  assert installed.keys() == variables.keys()
  changed = [
    n for n in variables if not np.array_equal(installed[n], variables[n])
  ]
  assert set(changed) == {n for n in variables if n.startswith('batch_stats/')}
  again, _ = apply(installed, images, train=False, **given)
  train, _ = apply(variables, images, train=True, **given)
  measured, again, train = (
    np.asarray(outputs.embedding)[:6] for outputs in (measured, again, train)
  )
  np.testing.assert_allclose(measured, again, atol=1e-4)
  np.testing.assert_allclose(measured, train, atol=1e-5)


def test_a_pass_has_every_image_once_in_even_mixed_batches():
  client = toy.toy_client('elm', 50)
  plan = cohort.pass_plan(client, 3, 16)
  assert sorted(plan.rows[plan.valid]) == list(range(50))
  assert plan.valid.sum(axis=1).tolist() == [13, 13, 12, 12]
  assert (np.diff(plan.rows[plan.valid]) < 0).any()
  again = cohort.pass_plan(client, 3, 16)
  np.testing.assert_array_equal(plan.rows, again.rows)
  other = cohort.pass_plan(client, 4, 16)
  assert (plan.rows != other.rows).any()


def stacked(moments):
  return jax.tree.map(lambda *leaves: np.stack(leaves), *moments)


@pytest.mark.slow
def test_moments_of_clients_are_those_of_their_images(config, clients):
  """At one model of all, at one a client, and in segments."""
  config = toy.replaced(
    config, {'local.data_pass_batch': 16, 'augment.pad': 0, 'augment.flip': 0.0}
  )
  fedpav = compose.load(('fedpav',), {}, algorithms)
  executor, variables, model = toy.make_rounds(config, clients, fedpav)
  found = stacked(
    executor.simulated.moments(
      {n: np.asarray(x)[None] for n, x in variables.items()}, np.zeros(4, int)
    )
  )
  own = {n: np.stack([x, x + 0.1, x, x]) for n, x in variables.items()}
  at_own = {}, np.zeros(4, int), lambda k: trees.rows(own, k)
  each = stacked(executor.simulated.moments(*at_own))
  measure = jax.jit(model.measure)
  for k, client in enumerate(clients):
    images = (client.images().astype(np.float32) / 255 - 0.5) / 0.25
    for layers, given in (
      (found, variables),
      (each, {n: x[k] for n, x in own.items()}),
    ):
      _, expected = measure(given, images)
      for name, moments in expected.items():
        jax.tree.map(
          lambda x, y, k=k: np.testing.assert_allclose(
            x[k], y, rtol=1e-4, atol=1e-5
          ),
          layers[name],
          moments,
        )
  config = toy.replaced(config, {'local.data_pass_batch': 4, 'augment.pad': 2})
  whole, *_ = toy.make_rounds(config, clients, fedpav)
  each = stacked(whole.simulated.moments(*at_own))
  assert (each['neck/bn'].mean != found['neck/bn'].mean).any()
  config = toy.replaced(config, {'execution.image_budget_mb': 700 / 2**20})
  cut, *_ = toy.make_rounds(config, clients, fedpav)
  toy.assert_equal_trees(each, stacked(cut.simulated.moments(*at_own)))
