from collections import Counter

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.data import augment
from fedreid_jax.evaluation import evaluator, features
from fedreid_jax.method import batch_stats
from fedreid_jax.round import compose, placement
from fedreid_jax.training import source_stats

NAMES = list(toy.SIZES)


def make_built(config, clients):
  """Executor, variables and network of four clients, images in one batch."""
  config = toy.replaced(
    config, {'local.data_pass_batch': 16, 'augment.pad': 0, 'augment.flip': 0.0}
  )
  fedpav = compose.load(('fedpav',), {}, algorithms)
  executor, variables, model = toy.make_rounds(config, clients, fedpav)
  return executor, jax.device_get(variables), model


@pytest.fixture
def built(config, clients):
  return make_built(config, clients)


def counted():
  return {'up': Counter(), 'down': Counter()}


def is_of(model, variables, found, clients):
  """Whether moments are those of the clients' images, each in one batch."""
  batches = [
    (c.images().astype(np.float32) / 255 - 0.5) / 0.25 for c in clients
  ]

  @jax.jit  # one compilation in place of that of each operation
  def installed(variables, batches):
    layers = [model.measure(variables, batch)[1] for batch in batches]
    return batch_stats.install(variables, batch_stats.pool(layers))

  expected = installed(variables, batches)
  toy.assert_close_trees(found, jax.device_get(expected), 1e-4)


@pytest.mark.slow
def test_the_server_s_model_gets_moments_of_all_clients(built, clients):
  executor, variables, model = built
  sent = counted()
  source = source_stats.make(executor.simulated, np.zeros(4, int), NAMES, sent)
  (models,) = source({'global': variables})
  found = models['global']
  is_of(model, variables, found, clients)
  moments = 4 * (2 * (4 + 8 + 8) + 3)  # three layers: mean, variance, count
  assert sent['up'] == {'batch_stats': 4 * moments}
  whole = sum(x.nbytes for x in variables.values())
  assert sent['down'] == {'batch_stats': 4 * whole}


def test_a_cluster_gets_those_of_its_clients(built, clients):
  executor, variables, model = built
  groups = np.array([2, 0, 2, 0])
  source = source_stats.make(executor.simulated, groups, NAMES, counted())
  (found,) = source({'cluster:0': variables, 'cluster:2': variables})
  is_of(model, variables, found['cluster:0'], clients[1::2])
  is_of(model, variables, found['cluster:2'], clients[::2])


def test_a_client_s_own_model_gets_those_of_its_images(built, clients):
  """Each at its own weights; a client without a model is left out."""
  executor, variables, model = built
  source = source_stats.make(
    executor.simulated, np.zeros(4, int), NAMES, counted()
  )
  other = {n: 1.5 * x for n, x in variables.items()}
  (found,) = source({'client:birch': variables, 'client:dogwood': other})
  assert list(found) == ['client:birch', 'client:dogwood']
  is_of(model, variables, found['client:birch'], clients[1:2])
  is_of(model, other, found['client:dogwood'], clients[3:])


@pytest.mark.slow
def test_an_average_of_models_has_moments_of_its_own(config, built, clients):
  executor, variables, model = built
  config = toy.replaced(
    config, {'evaluation.ensemble': ('average',), 'evaluation.batch': 16}
  )
  transforms = augment.make(config.augment, (0.5,), (0.25,))

  def evaluate(models, **given):
    run = evaluator.make(
      config.evaluation,
      toy.toy_federation(clients).targets,
      model,
      transforms,
      placement.make_mesh(1),
    )
    return run(models, **given)

  other = {n: 1.5 * x for n, x in variables.items()}
  models = {'client:ash': variables, 'client:birch': other}
  source = source_stats.make(
    executor.simulated, np.zeros(4, int), NAMES, counted()
  )
  mean = features.average([variables, other])
  scores = {}
  for name, given in (('running', {}), ('source', {'source': source})):
    entries = evaluate(models, **given)
    scores[name] = {e['model']: e['metrics'] for e in entries}
  config = toy.replaced(config, {'evaluation.ensemble': ()})
  alone = evaluate(source({'average': mean})[0])
  assert scores['source']['average'] == alone[0]['metrics']
  assert scores['source']['average'] != scores['running']['average']


@pytest.fixture
def infrared(clients):
  """One client of visible images, one of infrared ones, two of both."""
  one = [np.zeros(9, np.int32), np.ones(14, np.int32)]
  both = [(np.arange(n) % 3 == 0).astype(np.int32) for n in (5, 11)]
  return tuple(
    client._replace(modalities=kinds)
    for client, kinds in zip(clients, (*one, *both), strict=True)
  )


def of_kind(client, kind):
  rows = np.flatnonzero(client.modalities == kind)
  images = client.images()[rows]
  return client._replace(images=lambda: images)


@pytest.mark.slow
def test_each_modality_has_moments_of_its_own(config, infrared):
  executor, variables, model = make_built(config, infrared)
  sent = counted()
  source = source_stats.make(
    executor.simulated, np.zeros(4, int), NAMES, sent, 'modality'
  )
  found = source({'global': variables, 'client:birch': variables})
  assert len(found) == 2
  for kind, models in enumerate(found):
    own = [of_kind(c, kind) for c in infrared if (c.modalities == kind).any()]
    is_of(model, variables, models['global'], own)
  # Birch has no visible image: its running moments stay.
  toy.assert_close_trees(found[0]['client:birch'], variables, 0)
  is_of(model, variables, found[1]['client:birch'], infrared[1:2])
  moments = 4 * (2 * (4 + 8 + 8) + 3)
  assert sent['up'] == {'batch_stats': 2 * 2 * 4 * moments}
  whole = sum(x.nbytes for x in variables.values())
  assert sent['down'] == {'batch_stats': 2 * 4 * whole}


@pytest.mark.slow
def test_each_modality_is_measured_in_segments_as_well(config, infrared):
  executor, variables, _ = make_built(config, infrared)
  config = toy.replaced(config, {'execution.image_budget_mb': 2000 / 2**20})
  cut, _, _ = make_built(config, infrared)
  assert executor.simulated.local.segments.resident is not None
  assert cut.simulated.local.segments.resident is None
  every = [
    source_stats.make(
      e.simulated, np.zeros(4, int), NAMES, counted(), 'modality'
    )({'global': variables})
    for e in (executor, cut)
  ]
  for kind in (0, 1):
    toy.assert_close_trees(
      every[0][kind]['global'], every[1][kind]['global'], 1e-5
    )


def test_a_modality_of_no_client_is_refused(clients, infrared):
  for rule in ('running', 'source'):
    source_stats.check(rule, clients)
  source_stats.check('modality', infrared)
  with pytest.raises(errors.ConfigError, match='no client .* infrared'):
    source_stats.check('modality', clients)
  with pytest.raises(errors.ConfigError, match='no client .* visible'):
    source_stats.check('modality', infrared[1:2])
