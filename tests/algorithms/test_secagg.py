"""The model of masked uploads against integers added by NumPy."""

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms import byzantine, fedpav, secagg, uniform
from fedreid_jax.algorithms.statistics import secure_sum
from fedreid_jax.config import schema, validation
from fedreid_jax.core import prng
from fedreid_jax.method.component import MODEL, Participants
from fedreid_jax.round import compose
from fedreid_jax.training import contract

KERNEL, HEAD, MEAN = handmade.KERNEL, handmade.HEAD, handmade.MEAN
CLIENTS = contract.toy_clients()
SIZES = np.array([client.num_images for client in CLIENTS], np.float32)
START = {n: np.asarray(x) for n, x in handmade.variables(0.25, 0, 2.0).items()}
BOUNDS = {KERNEL: 1.0, MEAN: 16.0}


def bound(people=CLIENTS, cohort=4, **options):
  made = secagg.make(secagg.Options(**options))
  assert made.bind
  return made.bind(Participants(people, 0, cohort))


def uploads(rows=(0, 1, 2, 3), **fields):
  """What clients send; a value of the second is beyond its bound."""
  rng = np.random.default_rng(0)
  shared = {
    name: START[name] + rng.uniform(-0.5, 0.5, (4, *START[name].shape))
    for name in (KERNEL, MEAN)
  }
  shared[KERNEL][1, 0, 0] = START[KERNEL][0, 0] + 3.0
  rows = list(rows)
  return handmade.uploads(
    {n: x[rows] for n, x in shared.items()}, sizes=SIZES[rows], **fields
  )


def rounds(sent, numbers=(0,), beside=(), **options):
  """The shared parameters and the log of each of some rounds."""
  made = handmade.algorithm((fedpav.make(), *beside, bound(**options)))
  seed, public = prng.data(0), jnp.zeros((0, 1, 1, 3), jnp.uint8)
  start = {name: jnp.asarray(x) for name, x in START.items()}
  state = made.init_server(start, jnp.ones(4), public, seed)
  run, drawn = jax.jit(made.aggregate), jnp.arange(len(sent.num_steps))
  found = [run(state, sent, drawn, k, public, seed) for k in numbers]
  return [
    ({n: x[0] for n, x in new.shared.items()}, log)
    for new, log in jax.device_get(found)
  ]


def expected(sent, arrived, equal=False):
  """The model of the integers of the clients that arrived."""
  shares = np.ones(4, 'f4') if equal else SIZES * np.float32(1 / SIZES.max())
  one = secure_sum.scale(1.0, 4, 32)
  weight = np.rint(shares * one).astype('i8')[arrived].sum()
  weight = np.float32(weight) / np.float32(one)
  models = {}
  for name, limit in BOUNDS.items():
    scale = np.float32(secure_sum.scale(limit, 4, 32))
    changes = np.asarray(sent.shared[name]) - START[name]
    own = shares.reshape((4,) + (1,) * START[name].ndim)
    own = own * np.clip(changes, -limit, limit).astype('f4')
    total = np.rint(own * scale).astype('i8')[arrived].sum(axis=0)
    models[name] = START[name] + total.astype('f4') / scale * (1 / weight)
  return models


def test_models_have_the_bits_of_sums_of_integers():
  sent = uploads()
  for beside, options in (
    ((), {}),
    ((), {'masks': False}),
    ((uniform.make(),), {}),
  ):
    ((found, log),) = rounds(sent, beside=beside, **options)
    equal = bool(beside)
    toy.assert_equal_trees(found, expected(sent, np.arange(4), equal))
    shares = np.ones(4) / 4 if equal else SIZES / SIZES.sum()
    np.testing.assert_allclose(log['weights'], shares, rtol=1e-6)
    mean = np.average(np.asarray(sent.shared[MEAN]), axis=0, weights=shares)
    np.testing.assert_allclose(found[MEAN], mean, atol=1e-6)
    clipped = START[KERNEL][0, 0] + np.average(
      np.clip(sent.shared[KERNEL][:, 0, 0] - START[KERNEL][0, 0], -1, 1),
      weights=shares,
    )
    assert found[KERNEL][0, 0] == pytest.approx(clipped, abs=1e-6)
    assert log['server']['secagg_clipped'] == pytest.approx(1 / 36)
    assert log['server']['secagg_survivors'] == 4


def test_the_places_of_clients_and_empty_places_change_no_bit():
  ((plain, _),) = rounds(uploads())
  index = [2, -1, 0, 3, -1, 1]
  sent = uploads((2, 2, 0, 3, 3, 1), index=index)
  ((found, log),) = rounds(sent)
  toy.assert_equal_trees(found, plain)
  assert log['weights'][[1, 4]].sum() == 0


def test_lost_uploads_are_left_out_and_few_abort_the_round():
  sent = uploads()
  seen = set()
  for found, log in rounds(sent, range(20), dropout=0.3):
    arrived = np.flatnonzero(log['weights'] > 0)
    survivors = log['server']['secagg_survivors']
    assert log['server']['secagg_aborted'] == (survivors < 3)
    assert len(arrived) == (survivors if survivors >= 3 else 0)
    right = {n: START[n] for n in BOUNDS}
    if survivors >= 3:
      right = expected(sent, arrived)
    toy.assert_equal_trees(found, right)
    assert not log['fell_back'] and log['valid'].all()
    seen.add(int(survivors))
  assert {2, 3, 4} <= seen


def test_an_upload_that_is_not_finite_is_lost():
  sent = uploads()
  spoilt = np.array(sent.shared[KERNEL])
  spoilt[2, 1, 1] = np.nan
  wrong = sent.replace(shared={**sent.shared, KERNEL: jnp.asarray(spoilt)})
  ((found, log),) = rounds(wrong)
  toy.assert_equal_trees(found, expected(sent, np.array([0, 1, 3])))
  assert log['server']['secagg_survivors'] == 3
  ((kept, log),) = rounds(wrong, threshold=4)
  toy.assert_equal_trees(kept, {n: START[n] for n in BOUNDS})
  assert log['server']['secagg_aborted'] == 1


def test_few_bits_are_rounded_at_random():
  sent = uploads()
  found = [x for x, _ in rounds(sent, range(40), bits=16)]
  right = expected(sent, np.arange(4))
  step = 4 / secure_sum.scale(1.0, 4, 16)
  each = np.stack([x[KERNEL] for x in found])
  assert 0 < np.abs(each - right[KERNEL]).max() < 2 * step
  assert (each[0] != each[1]).any()
  assert np.abs(each.mean(axis=0) - right[KERNEL]).max() < step / 4


def test_bytes_are_those_of_packed_numbers_with_keys_and_shares():
  shared = {KERNEL: jnp.zeros((3, 2)), MEAN: jnp.zeros(2)}
  for bits in (16, 20, 32):
    made = bound(bits=bits, masks=False).transport
    packed = np.packbits(np.zeros((6 + 2 + 1, bits), np.uint8))
    assert made and made.size and made.size(MODEL, shared) == packed.nbytes
    masked = bound(bits=bits).transport
    assert masked and masked.size
    assert masked.size(MODEL, shared) == packed.nbytes + 3 * 160


@pytest.mark.parametrize(
  'name, reason',
  [
    ('client_clustering', "'client_clustering' clusters all uploads"),
    ('compress', "'compress' compresses single uploads"),
    ('dfh', "server of 'dfh' receives single messages"),
    ('ccst', "server of 'ccst' receives single messages"),
    ('fedatt', "rule of 'fedatt' needs all uploads at once"),
    ('fedbuff', "clients of 'fedbuff' start from models of different rounds"),
    ('sscu', "clients of 'sscu' send messages before the first round"),
    ('cluster_contrast', "clients of 'cluster_contrast' send messages before"),
    ('kd', "'kd' needs all uploads at once"),
    ('robust', "rule of 'robust' needs all uploads at once"),
  ],
)
def test_what_needs_single_uploads_is_refused(name, reason):
  parts = compose.load(('fedpav', name, 'secagg'), {}, algorithms)
  with pytest.raises(errors.ConfigError, match=reason) as caught:
    compose.check(parts)
  assert "but 'secagg' gives the server sums only" in str(caught.value)


def test_only_attackers_that_agree_are_refused():
  def method(kind):
    options = byzantine.Options(kind=kind, clients=('ash', 'birch'))
    attack = byzantine.make(options)
    assert attack.bind
    attack = attack.bind(Participants(CLIENTS, 0, 4))
    return fedpav.make(), attack, secagg.make()

  compose.check(method('sign'))
  with pytest.raises(
    errors.ConfigError, match="'byzantine' changes all uploads"
  ):
    compose.check(method('alie'))


@pytest.mark.parametrize(
  'name',
  (
    *('fedprox', 'moon', 'snr', 'fedopt', 'noise', 'uniform', 'dpsgd'),
    *('mixstyle', 'crossstyle', 'fedsr', 'dacs', 'fedureid'),
    *('scaffold', 'dppt', 'cdw', 'fednova', 'dp_fedavg'),
  ),
)
def test_what_sees_the_sum_only_is_composed(name):
  compose.check(compose.load(('fedpav', 'secagg', name), {}, algorithms))


@pytest.mark.parametrize(
  'cohort, options, message',
  [
    (2, {}, '2 clients in a round, but secure aggregation needs 3'),
    (4, {'threshold': 5}, 'needs 5 uploads'),
    (65, {}, 'masks of 65 clients'),
    (2048, {'bits': 16, 'masks': False}, '16 bits are too few.*2048 weights'),
  ],
)
def test_cohorts_that_cannot_be_added(cohort, options, message):
  with pytest.raises(errors.ConfigError, match=message):
    bound(cohort=cohort, **options)
  bound(cohort=65, masks=False)
  bound(cohort=1500, bits=16, masks=False)


def test_running_statistics_of_one_client_are_refused():
  config = schema.default()
  config.components = ('fedpav', 'secagg')
  config.batch_stats_rule = 'first_client'
  with pytest.raises(errors.ConfigError, match="'secagg' does not know"):
    validation.validate(config)


@pytest.mark.parametrize(('most', 'full'), [(100, 0), (0, 200), (200, 200)])
def test_weights_that_dp_fedavg_calls_full_are_refused_above_n_max(most, full):
  config = schema.default()
  config.components = ('fedpav', 'dp_fedavg', 'secagg')
  config.model.norm, config.batch_stats_rule = 'group', 'keep_server'
  config.secagg.n_max, config.dp_fedavg.n_max = most, full
  validation.validate(config)
  config.dp_fedavg.n_max = 201
  if most:
    with pytest.raises(errors.ConfigError, match='secagg.n_max'):
      validation.validate(config)


def test_a_run_warns_of_clipped_values():
  warn = secagg.make().warn
  assert warn and not warn({'clipped': 1e-4, 'aborted': 1.0})
  assert 'secagg.bound' in warn({'clipped': 0.01, 'aborted': 0.0})
