"""Clients without labels: Cluster Contrast, FedUReID, and what they share."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms.statistics import clusters, pseudo_labels
from fedreid_jax.algorithms.statistics.pseudo_labels import Clusters
from fedreid_jax.config import recipes, schema, validation
from fedreid_jax.core.types import Batch, Outputs
from fedreid_jax.data import client_split
from fedreid_jax.method import component
from fedreid_jax.round import compose
from fedreid_jax.training import cluster_quality, loop

NAMES = ('cluster_contrast', 'fedureid')
PLAIN = 7.0  # loss of the configuration
OPTIONS = {
  'cluster_contrast': {'k1': 4, 'k2': 2, 'min_samples': 2},
  'fedureid': {'merge': 0.3},
}


def executor_of(name, clients, components=None):
  config = toy.replaced(toy.toy_config(), {'optim.lr': 0.01})
  chosen = compose.load(
    components or ('fedpav', name), {name: OPTIONS.get(name, {})}, algorithms
  )
  executor, variables, _ = toy.make_rounds(config, clients, chosen)
  return executor, variables


def trained(name, clients, rounds=2, components=None):
  return toy.run(*executor_of(name, clients, components), rounds)


def without_labels(clients, *domains):
  return client_split.hide_labels(clients, domains or ('all',))


@pytest.fixture
def clients():
  return toy.toy_clients()


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', [pytest.param('cluster_contrast', marks=pytest.mark.slow), 'fedureid']
)
def test_training_does_not_depend_on_the_identities(name, clients):
  """Other persons, the same images: every bit is the same."""
  others = tuple(
    c._replace(labels=np.roll(c.labels, 1) * 0, num_identities=1)
    for c in clients
  )
  server, store, _ = trained(name, without_labels(clients))
  again, kept, _ = trained(name, without_labels(others))
  toy.assert_equal_trees(server.shared, again.shared)
  toy.assert_equal_trees(store, kept)


@pytest.mark.slow
def test_clients_with_labels_train_as_without_the_component(clients):
  # All but one have labels; their first round begins from the same model.
  mixed = without_labels(clients, clients[1].name)
  width = max(c.num_identities for c in mixed)
  mixed = tuple(c._replace(num_identities=width) for c in mixed)
  _, store, log = trained('fedureid', mixed, 1)
  _, plain, _ = trained('fedureid', mixed, 1, ('fedpav',))
  for leaf, values in plain.personal.items():
    same = (values == store.personal[leaf]).reshape(len(mixed), -1).all(axis=1)
    took_part = np.isin(np.arange(len(mixed)), log[-1]['clients'])
    with_labels = np.arange(len(mixed)) != 1
    assert same[with_labels & took_part].all(), leaf


def step_of(labels, embedding, valid=None):
  """A step of a client with five images, with a plain loss of 7."""
  labels, num = jnp.asarray(labels, jnp.int32), len(labels)
  valid = jnp.ones(num, bool) if valid is None else jnp.asarray(valid)
  embedding = jnp.asarray(embedding, jnp.float32)
  zeros = jnp.zeros(num, jnp.int32)
  return toy.step(
    batch=Batch(jnp.zeros((num, 1, 1, 1)), labels, zeros, zeros, valid),
    outputs=Outputs(embedding, embedding, jnp.zeros((num, 5))),
    task=types.SimpleNamespace(index=0, num_identities=5),
    objective=lambda outputs, batch: (PLAIN, {}),
  )


def scheme(temperature=0.5, momentum=0.25):
  return pseudo_labels.Scheme(
    cluster=lambda *given: given[2],
    clustered='embedding',
    before=True,
    temperature=temperature,
    momentum=momentum,
  )


MEMORY = jnp.array([[1, 0], [0, 1], [0.6, 0.8], [0, 0], [0, 0]])
STATE = Clusters(jnp.array([0, 1, 2, -1, 1]), MEMORY)


def test_loss_of_a_batch():
  # Images 0, 3 (no cluster), 4 of 5; the fourth row is padding.
  embedding = [[2.0, 0.0], [1.0, 1.0], [3.0, 4.0], [np.nan, 0.0]]
  ctx = step_of([0, 3, 4, 0], embedding, [True, True, True, False])
  loss, metrics = pseudo_labels._contrast(
    scheme(), lambda ctx: True, {}, STATE, ctx
  )
  x = np.array([[1.0, 0.0], [0.6, 0.8]])
  scores = x @ np.asarray(MEMORY)[:3].T / 0.5
  log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
  expected = -(log_p[0, 0] + log_p[1, 1]) / 2
  assert float(loss) == pytest.approx(expected - PLAIN, abs=1e-6)
  assert float(metrics['contrast']) == pytest.approx(expected, abs=1e-6)
  assert float(metrics['clustered']) == pytest.approx(200 / 3, abs=1e-4)
  assert (float(metrics['clusters']), float(metrics['precision'])) == (3, 50)


def test_a_batch_without_clusters_has_no_loss_and_a_finite_gradient():
  def loss(embedding):
    value, _ = pseudo_labels._contrast(
      scheme(), lambda ctx: True, {}, STATE, step_of([3, 3], embedding)
    )
    return value + PLAIN

  value, slope = jax.value_and_grad(loss)(jnp.ones((2, 2)))
  assert float(value) == 0 and not np.any(slope)


def test_memory_is_updated_image_by_image():
  ctx = step_of([1, 4, 3], [[1.0, 0.0], [0.0, -2.0], [1.0, 1.0]])
  found = pseudo_labels._remember(scheme(), STATE, ctx).memory
  row = MEMORY[1]
  for x in ([1.0, 0.0], [0.0, -1.0]):
    row = 0.25 * row + 0.75 * np.array(x)
    row = row / np.linalg.norm(row)
  np.testing.assert_allclose(found[1], row, atol=1e-6)
  rest = [0, 2, 3, 4]
  np.testing.assert_array_equal(found[np.array(rest)], MEMORY[np.array(rest)])


@pytest.mark.slow
def test_clusters_before_round_0_and_after_each(clients):
  _, store, _ = trained('cluster_contrast', without_labels(clients), 0)
  states = store.states['cluster_contrast']
  for k, client in enumerate(clients):
    assert states.labels[k][client.num_images :].max(initial=-1) == -1
    own = np.linalg.norm(states.memory[k], axis=1)
    num = states.labels[k].max() + 1
    np.testing.assert_allclose(own[:num], 1, atol=1e-5)
    assert not own[num:].any()


@pytest.mark.slow
def test_fedureid_merges_a_share_of_the_images(clients):
  clients = without_labels(clients)
  merged, logs = 0, []
  executor, variables = executor_of('fedureid', clients)
  server, store = executor.init(variables)
  server, _ = executor.prepare(server, store)
  for round_ in range(4):
    server, log = executor.round(server, store, round_)
    logs.append(log)
    labels = store.stacked().states['fedureid'].labels
    for k, client in enumerate(clients):
      num = client.num_images
      took_part = sum(k in log['clients'] for log in logs)
      # The first 1 / 0.3 - 1 = 2 rounds of a client.
      own = min(took_part, 2) * int(0.3 * num)
      assert len(np.unique(labels[k][:num])) == num - own
      merged += own
  assert merged > 20


def test_perfect_features_give_the_persons():
  persons = np.repeat(np.arange(5), 6)
  rng = np.random.default_rng(0)
  x = np.eye(8)[persons] + 0.01 * rng.normal(size=(30, 8))
  x = jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), jnp.float32)
  valid = np.ones(30, bool)
  found = clusters.dbscan(clusters.jaccard(x, valid, 6, 2), valid, 0.6, 4)
  np.testing.assert_array_equal(found, persons)


def test_quality_of_clusters():
  persons = np.array([0, 0, 1, 1, 2, 2])
  same = cluster_quality.compare(np.array([1, 1, 0, 0, 2, 2]), persons)
  assert same == {'ami': pytest.approx(1), 'clusters': 3, 'identities': 3}
  # An image without a cluster is a cluster of its own.
  none = cluster_quality.compare(np.full(6, -1), persons)
  alone = cluster_quality.compare(np.arange(6), persons)
  assert none['ami'] == alone['ami'] and none['clusters'] == 0


def test_labels_of_some_domains_are_hidden(clients):
  first = clients[0].name
  found = without_labels(clients, first)
  assert found[1:] == clients[1:]
  np.testing.assert_array_equal(
    found[0].labels, np.arange(len(found[0].labels))
  )
  np.testing.assert_array_equal(found[0].identities, clients[0].labels)
  assert found[0].num_identities == clients[0].num_images
  with pytest.raises(
    errors.ConfigError, match="no client has the domain 'elm'"
  ):
    without_labels(clients, 'elm')


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize(
  'changes, message',
  [
    ({'data.unlabelled': ()}, 'no client is without labels'),
    ({'local.sampler': 'pk'}, "'pk' draws by labels"),
    ({'data.client_split': 'centralised'}, 'number their own images'),
    ({'data.client_split': 'by_identity'}, 'number their own images'),
    ({'data.labels': 'concat'}, 'number their own images'),
    ({'evaluation.validation': 0.1}, 'cannot be held out'),
    (
      {'data.poison': 'shuffle', 'data.poisoned': ('plaza',)},
      'no labels to poison',
    ),
    ({'components': ('fedpav',)}, 'trains on labels'),
  ],
)
def test_configurations_that_cannot_run(name, changes, message):
  config = recipes.recipe(name)
  config.update_from_flattened_dict(changes)
  with pytest.raises(errors.ConfigError, match=message):
    validation.validate(config)


@pytest.mark.slow
def test_a_federation_with_and_without_labels(tmp_path):
  arg = 'smoke,model.features=(8,16)'
  config = recipes.recipe('fedureid', arg)
  config.data.unlabelled = ('plaza',)
  seen = []

  class Keep(loop.events.Callback):
    def on_round(self, event):
      seen.append(event)

  loop.train(validation.validate(config), tmp_path, callbacks=[Keep()])
  for event in seen:
    assert {'ami', 'clusters', 'identities'} <= event.clients['plaza'].keys()
    assert 'ami' not in event.clients['campus']
    assert event.metrics['ami'] == event.clients['plaza']['ami']


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('other', ['dfh', 'dacs', 'local_expert', *NAMES])
def test_components_that_train_on_labels_are_refused(name, other):
  if name == other:
    return
  config = recipes.recipe(name, 'smoke')
  config.components = ('fedpav', name, other)
  schema.complete(config)
  with pytest.raises(errors.ConfigError, match='trains on labels'):
    validation.validate(config)


def test_others_are_composed_with_clients_without_labels():
  config = recipes.recipe('cluster_contrast', 'smoke')
  for other in ('fedprox', 'moon', 'scaffold', 'cdw', 'robust'):
    config.components = ('fedpav', 'cluster_contrast', other)
    validation.validate(schema.complete(config))


def test_a_client_without_labels_may_have_one_person(clients):
  given = component.Participants(without_labels(clients), 0, 4)
  with pytest.raises(errors.DataError, match='features of single persons'):
    given.require_identities(2, 'dfh.min_identities')


def test_a_site_may_name_the_domains_of_other_sites(clients):
  (alone,) = without_labels(clients[:1], 'elm')
  assert alone.identities is None


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_a_dead_network_stays_finite(name, clients):
  config = toy.replaced(toy.toy_config(), {'optim.lr': 0.005})
  chosen = compose.load(
    ('fedpav', name), {name: OPTIONS.get(name, {})}, algorithms
  )
  config = toy.replaced(
    config, {'execution.deterministic': False, 'execution.width': 0}
  )
  executor, variables, _ = toy.make_rounds(
    config, without_labels(clients), chosen
  )
  dead = {k: v * 0 for k, v in variables.items() if 'params/backbone' in k}
  server, _, _ = toy.run(executor, variables | dead, 2)
  assert all(np.isfinite(x).all() for x in server.shared.values())
