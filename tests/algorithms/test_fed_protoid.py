"""Fed-Protoid: a source at the server, and cameras that adapt its model."""

import dataclasses
import types

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms import fed_protoid
from fedreid_jax.algorithms.fed_protoid import (
  Adapting,
  Options,
  Prototypes,
  Served,
)
from fedreid_jax.algorithms.statistics.pseudo_labels import Clusters
from fedreid_jax.config import recipes, validation
from fedreid_jax.core import trees
from fedreid_jax.core.types import Batch, Outputs, Upload
from fedreid_jax.data import client_split
from fedreid_jax.losses import adaptation
from fedreid_jax.method.component import Participants
from fedreid_jax.method.contexts import ReceiveCtx
from fedreid_jax.round import compose
from fedreid_jax.training import loop

PLAIN = 7.0  # loss of the configuration
SOURCE = 'birch'
OPTIONS = {'k1': 4, 'k2': 2, 'min_samples': 2}


@pytest.fixture
def clients():
  """Three cameras, and a source with three identities."""
  return client_split.hide_labels(
    toy.toy_clients(), ('ash', 'cedar', 'dogwood')
  )


def trained(clients, rounds, **options):
  config = toy.replaced(toy.toy_config(), {'optim.lr': 0.01})
  given = {'fed_protoid': OPTIONS | options}
  chosen = compose.load(('fedpav', 'fed_protoid'), given, algorithms)
  executor, variables, _ = toy.make_rounds(config, clients, chosen)
  start = jax.device_get(variables)
  return (start, *toy.run(executor, variables, rounds))


def step_of(labels, embedding, teacher, valid, kernel, prototypes):
  """A step of a client with five images, with a plain loss of 7."""
  labels, num = jnp.asarray(labels, jnp.int32), len(labels)
  zeros = jnp.zeros(num, jnp.int32)

  def outputs(embedding):
    embedding = jnp.asarray(embedding, jnp.float32)
    return Outputs(2 * embedding, embedding, embedding @ kernel)

  return toy.step(
    batch=Batch(
      jnp.zeros((num, 1, 1, 1)), labels, zeros, zeros, jnp.asarray(valid)
    ),
    outputs=outputs(embedding),
    aux=outputs(teacher),
    task=types.SimpleNamespace(index=0, num_identities=5),
    objective=lambda outputs, batch: (PLAIN, {}),
    message=prototypes,
    key=jax.random.key(0),
  )


def rows(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


LABELS = np.array([0, 1, 0, 3, 4])  # images of the batch
FOUND = Clusters(jnp.array([0, 0, 1, -1, 1]), jnp.zeros((5, 3)))
OF_CAMERA = np.array([0, 0, 0, -1, 1])  # clusters of the batch
SEEN = np.array([True, True, False, True, True])  # the third row is padding
PARTS = ('cross_entropy', 'soft', 'triplet', 'soft_triplet', 'mmd')


def loss_of(camera, only='', labels=LABELS):
  """The loss with one of its parts, and its metrics."""
  embedding, kernel = rows(0, 5, 3), rows(1, 3, 5)
  options = Options(label_smoothing=0.0, **{n: float(n == only) for n in PARTS})
  prototypes = Prototypes(jnp.asarray(rows(2, 1, 5, 3)), jnp.ones((1, 5), bool))
  ctx = step_of(labels, embedding, rows(3, 5, 3), SEEN, kernel, prototypes)
  offset = rows(4, 3, 5) if camera else np.zeros((3, 5), np.float32)
  state = Adapting(FOUND, jnp.asarray(offset), {})
  loss, metrics = fed_protoid._loss(
    options, lambda ctx: jnp.bool_(camera), {}, state, ctx
  )
  return float(loss), {n: float(x) for n, x in metrics.items()}


def log_softmax(scores):
  return scores - np.log(np.exp(scores).sum(1, keepdims=True))


@pytest.mark.parametrize('camera', [True, False])
def test_scores_of_clusters_and_of_identities(camera):
  kernel = rows(1, 3, 5) + (rows(4, 3, 5) if camera else 0)
  # A camera has the two clusters, the source its five identities.
  labels = OF_CAMERA if camera else LABELS
  kept = SEEN & (labels >= 0)
  columns = 2 if camera else 5
  log_p = log_softmax((rows(0, 5, 3) @ kernel)[kept, :columns])
  log_q = log_softmax((rows(3, 5, 3) @ kernel)[kept, :columns])
  entropy = -log_p[np.arange(len(log_p)), labels[kept]].mean()
  soft = (np.exp(log_q) * (log_q - log_p)).sum(1).mean()
  for name, expected in (('cross_entropy', entropy), ('soft', soft)):
    loss, metrics = loss_of(camera, name)
    assert loss == pytest.approx(expected - PLAIN, abs=1e-5)
    assert metrics[name] == pytest.approx(expected, abs=1e-5)


def test_triplets_are_of_pooled_features_and_of_clusters():
  features, teacher = 2 * rows(0, 5, 3), 2 * rows(3, 5, 3)
  valid = jnp.asarray(SEEN & (OF_CAMERA >= 0))
  given = jnp.asarray(features), jnp.asarray(OF_CAMERA), valid
  hard = adaptation.softmax_triplet(*given)
  soft = adaptation.soft_softmax_triplet(
    given[0], jnp.asarray(teacher), *given[1:]
  )
  for name, expected in (('triplet', hard), ('soft_triplet', soft)):
    loss, _ = loss_of(True, name)
    assert float(expected) > 0
    assert loss == pytest.approx(float(expected) - PLAIN, abs=1e-5)


def test_only_cameras_have_a_discrepancy_from_the_prototypes():
  loss, metrics = loss_of(True, 'mmd')
  # The batch has five rows, and all five prototypes are drawn. The image
  # without a cluster is in it, padding is not.
  expected = adaptation.mmd(
    jnp.asarray(rows(0, 5, 3)),
    jnp.asarray(rows(2, 1, 5, 3)[0]),
    jnp.asarray(SEEN),
    jnp.ones(5, bool),
  )
  assert metrics['mmd'] == pytest.approx(float(expected), abs=1e-5)
  assert loss == pytest.approx(float(expected) - PLAIN, abs=1e-5)
  loss, metrics = loss_of(False, 'mmd')
  assert loss == -PLAIN and metrics['mmd'] == 0


def test_a_batch_without_clusters_is_finite_and_in_the_discrepancy_only():
  """Only image 3, which has no cluster."""
  options = Options()
  prototypes = Prototypes(
    jnp.asarray(rows(2, 1, 5, 3)), jnp.zeros((1, 5), bool)
  )
  none = dataclasses.replace(FOUND, labels=jnp.full(5, -1))

  def loss(embedding):
    ctx = step_of(
      [3, 3], embedding, rows(3, 2, 3), [True, True], rows(1, 3, 5), prototypes
    )
    state = Adapting(none, jnp.zeros((3, 5)), {})
    found, _ = fed_protoid._loss(
      options, lambda ctx: jnp.bool_(True), {}, state, ctx
    )
    return found + PLAIN

  value, slope = compiled.value_and_grad(loss)(rows(0, 2, 3))
  assert float(value) == 0 and not np.any(slope)


def test_the_teacher_follows_by_its_decay():
  state = Adapting(
    FOUND, jnp.zeros((3, 5)), {'params/a': 1.0, 'batch_stats/b': 5}
  )
  ctx = toy.step(variables={'params/a': jnp.float32(3), 'batch_stats/b': 9})
  for expected in (1 + 0.25 * 2, 1.5 + 0.25 * 1.5):
    state = fed_protoid._follow(0.75, state, ctx)
    assert float(state.teacher['params/a']) == pytest.approx(expected)
  # Its running statistics are those of its own batches.
  assert state.teacher['batch_stats/b'] == 5


def test_uploads_have_the_teacher_and_no_message_of_its_size():
  message = {'source': False, 'teacher': {'params/a': 2.0, 'own': 3.0}}
  upload = Upload(
    0,
    {'params/a': 1.0},
    8.0,
    2,
    True,
    {'fed_protoid': message},
  )
  _, sent = fed_protoid._send_teacher((), upload, None, None)
  assert sent.shared == {'params/a': 2.0}
  assert sent.messages == {'fed_protoid': {'source': False}}


def shares(sources, members, weights='count', beta=0.2):
  ctx = types.SimpleNamespace(
    num_examples=jnp.array([10.0, 30.0, 60.0, 500.0]),
    members=jnp.asarray(members)[None],
    start={'params/a': 0, 'batch_stats/b': 0},
  )
  found = fed_protoid._shares(
    Options(weights=weights, beta=beta), {'source': jnp.asarray(sources)}, ctx
  )
  return found['params/a'][0], found['batch_stats/b'][0]


SOURCES = [False, False, False, True]
ALL = [True] * 4


@pytest.mark.parametrize(
  'members, weights, expected, running',
  [
    (ALL, 'count', (0.08, 0.24, 0.48, 0.2), (0.1, 0.3, 0.6, 0)),
    (ALL, 'equal', (0.8 / 3,) * 3 + (0.2,), (1 / 3,) * 3 + (0,)),
    # The first camera is not in the cohort or failed.
    (
      [False, True, True, True],
      'count',
      (0, 0.8 / 3, 1.6 / 3, 0.2),
      (0, 1 / 3, 2 / 3, 0),
    ),
    # Without the source, and without a camera.
    ([True] * 3 + [False], 'count', (0.1, 0.3, 0.6, 0), (0.1, 0.3, 0.6, 0)),
    ([False] * 3 + [True], 'count', (0, 0, 0, 1), (0, 0, 0, 1)),
    ([False] * 4, 'count', (0,) * 4, (0,) * 4),
  ],
)
def test_weights_of_a_round(members, weights, expected, running):
  found = shares(SOURCES, members, weights)
  np.testing.assert_allclose(found[0], expected, atol=1e-6)
  np.testing.assert_allclose(found[1], running, atol=1e-6)


def test_running_statistics_are_those_of_the_images_of_all_cameras():
  """Moments of images that three cameras divide; the fourth is the source."""
  images = [rows(k, num, 2) * (k + 1) + k for k, num in enumerate((2, 5, 3, 9))]
  cameras = np.concatenate(images[:3])
  uploaded = {
    'batch_stats/bn/mean': jnp.stack([x.mean(0) for x in images]),
    'batch_stats/bn/var': jnp.stack([x.var(0) for x in images]),
    'params/mean': jnp.ones((4, 2)),
  }
  ctx = types.SimpleNamespace(
    num_examples=jnp.array([2.0, 5.0, 3.0, 9.0]),
    members=jnp.ones((1, 4), bool),
    index=jnp.arange(4),
    uploaded=uploaded,
    start={n: x[:1] for n, x in uploaded.items()},
  )
  source = jnp.asarray(SOURCES)
  shares = fed_protoid._shares(Options(), {'source': source}, ctx)
  models = {n: shares[n] @ x for n, x in uploaded.items()}
  _, found = fed_protoid._add_variance(
    Options(), Served(None, source), models, ctx
  )
  np.testing.assert_allclose(
    found['batch_stats/bn/mean'][0], cameras.mean(0), rtol=1e-5
  )
  np.testing.assert_allclose(
    found['batch_stats/bn/var'][0], cameras.var(0), rtol=1e-5
  )
  np.testing.assert_allclose(found['params/mean'], 1, rtol=1e-6)


def test_only_valid_sources_send_prototypes():
  unlabelled = np.array([True, False, True, False])
  none = Prototypes(jnp.zeros((2, 3, 2)), jnp.zeros((2, 3), bool))
  state = Served(none, jnp.zeros(4, bool))
  sent = {
    'source': jnp.array([False, True, True]),
    'prototypes': Prototypes(
      jnp.ones((3, 3, 2)) * jnp.array([5.0, 6.0, 7.0])[:, None, None],
      jnp.ones((3, 3), bool),
    ),
  }
  ctx = ReceiveCtx(jnp.array([0, 3, 1]))
  found = fed_protoid._receive(
    unlabelled, state, sent, jnp.array([True, True, False]), ctx
  )
  kept = found.prototypes
  np.testing.assert_array_equal(kept.means[:, 0, 0], [0, 6])
  np.testing.assert_array_equal(kept.present.any(axis=1), [False, True])
  np.testing.assert_array_equal(found.source, [False, False, False, True])
  # Messages of rounds have none.
  later = fed_protoid._receive(
    unlabelled, found, {'source': sent['source']}, jnp.ones(3, bool), ctx
  )
  assert later.prototypes is kept


def test_a_round_changes_nothing_if_the_teacher_stays(clients):
  """With decay 1 teachers are the received model, whatever is trained."""
  start, server, store, _ = trained(clients, 2, decay=1.0)
  params, _ = trees.trainable(server.shared)
  for name, leaf in params.items():
    np.testing.assert_allclose(leaf[0], start[name], atol=1e-6)
  kernel = store.personal['params/classifier/kernel']
  assert np.isfinite(kernel).all() and np.abs(kernel).max() > 0


@pytest.mark.slow
def test_prototypes_are_computed_once_and_students_move(clients):
  start, before, _, _ = trained(clients, 0)
  _, server, store, _ = trained(clients, 2, decay=0.0)
  kept = [s.states['fed_protoid'].prototypes for s in (before, server)]
  toy.assert_equal_trees(*kept)
  # The only source has three identities.
  assert kept[0].present.shape[0] == 1
  assert kept[0].present[0].tolist() == [True] * 3 + [False] * 8
  assert np.abs(kept[0].means[0, :3]).min() > 0
  assert not kept[0].means[0, 3:].any()
  params, _ = trees.trainable(server.shared)
  assert any(np.abs(x[0] - start[n]).max() > 1e-3 for n, x in params.items())
  found = store.states['fed_protoid'].labels
  for k, client in enumerate(clients):
    if not client.labelled:
      assert found[k][client.num_images :].max(initial=-1) == -1


@pytest.mark.slow
def test_training_does_not_depend_on_the_identities_of_cameras(clients):
  others = tuple(
    c if c.labelled else c._replace(identities=c.identities * 0)
    for c in clients
  )
  _, server, store, _ = trained(clients, 1)
  _, again, kept, _ = trained(others, 1)
  toy.assert_equal_trees(server.shared, again.shared)
  toy.assert_equal_trees(store, kept)


def test_the_message_before_round_0_is_the_only_large_one(clients):
  config = toy.toy_config()
  chosen = compose.load(
    ('fedpav', 'fed_protoid'), {'fed_protoid': OPTIONS}, algorithms
  )
  executor, variables, _ = toy.make_rounds(config, clients, chosen)
  server, store = executor.init(variables)
  server, log = executor.prepare(server, store)
  assert log['up']['fed_protoid'] > 100
  _, log = executor.round(server, store, 0)
  assert log['up']['fed_protoid'] == len(clients)  # a flag each
  assert log['up']['model'] == log['down']['model']
  assert 'fed_protoid' not in log['down']


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'data.unlabelled': ()}, 'no client is without labels'),
    ({'local.sampler': 'pk'}, "'pk' draws by labels"),
    ({'data.unlabelled': ('all',)}, 'neither a source'),
    ({'data.unlabelled': ('plaza', 'mall')}, 'neither a source'),
    ({'fed_protoid.beta': 1.5}, 'beta'),
    ({'batch_stats_rule': 'keep_server'}, 'running statistics'),
    ({'components': ('fedpav', 'fed_protoid', 'dfh')}, 'trains on labels'),
  ],
)
def test_configurations_that_cannot_run(changes, message):
  config = recipes.recipe('fed_protoid', 'smoke')
  config.update_from_flattened_dict(changes)
  with pytest.raises(errors.ConfigError, match=message):
    validation.validate(config)


@pytest.mark.parametrize('other', ['compress', 'fedbuff', 'fedatt', 'secagg'])
def test_components_that_change_uploads_or_the_mean_are_refused(other):
  chosen = compose.load(('fedpav', 'fed_protoid', other), {}, algorithms)
  with pytest.raises(errors.ConfigError, match='fed_protoid'):
    compose.check(chosen)


def test_without_a_source_the_run_starts_from_a_model(clients):
  config = recipes.recipe('fed_protoid', 'smoke')
  config.data.unlabelled, config.start_from = ('all',), 'runs/source'
  validation.validate(config)
  made = fed_protoid.make()
  cameras = tuple(c for c in clients if not c.labelled)
  own = made.bind(Participants(cameras, 0, 3))
  # There is a row, in which no prototype is present.
  state = own.server.init(
    types.SimpleNamespace(
      num_clients=3,
      outputs=Outputs(
        *(jax.ShapeDtypeStruct((1, n), np.float32) for n in (2, 2, 4))
      ),
    )
  )
  assert state.prototypes.means.shape == (1, 4, 2)
  assert not state.prototypes.present.any()


@pytest.mark.slow
def test_the_recipe_adapts_from_a_run_of_the_source(tmp_path):
  """The classifier of the source has as many columns as images of a camera."""
  source = recipes.recipe(
    'fedpav', 'smoke,data.sources=("plaza",),model.neck=bnneck'
  )
  loop.train(validation.validate(source), tmp_path / 'source')
  config = recipes.recipe('fed_protoid', 'smoke,fed_protoid.k1=4')
  config.start_from = str(tmp_path / 'source')
  seen = []

  class Keep(loop.events.Callback):
    def on_round(self, event):
      seen.append(event.metrics)

  loop.train(
    validation.validate(config), tmp_path / 'adapted', callbacks=[Keep()]
  )
  assert len(seen) == 2
  for metrics in seen:
    assert metrics['fed_protoid_clusters'] > 1
    assert metrics['fed_protoid_mmd'] > 0
    assert metrics['fed_protoid_triplet'] > 0
