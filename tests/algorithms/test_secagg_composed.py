"""Rules and messages in sums of integers against the same in the open."""

import functools

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from scipy import stats

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms import (
  cdw,
  dp_fedavg,
  fednova,
  fedpav,
  scaffold,
  secagg,
  uniform,
)
from fedreid_jax.algorithms.statistics import secure_sum
from fedreid_jax.core import prng, types
from fedreid_jax.method import accounting
from fedreid_jax.method.accounting import Mechanism
from fedreid_jax.method.component import Component, Participants, Summation
from fedreid_jax.method.contexts import AggregationCtx, ServerCtx, ServerInitCtx
from fedreid_jax.method.sums import Weighted
from fedreid_jax.models import networks
from fedreid_jax.round import compose, round_log
from fedreid_jax.training import contract, engine

KERNEL, MEAN = handmade.KERNEL, handmade.MEAN
CLIENTS = contract.toy_clients()
SIZES = np.array([client.num_images for client in CLIENTS], np.float32)
START = handmade.variables(0.25, 0.0, 2.0)
EVERYONE = Participants(CLIENTS, 0, 4)
DISTANCES = np.array([0.5, 0.1, 0.3, 1.9], np.float32)
COUNTS = np.array([3.0, 40.0, 9.0, 5.5], np.float32)


def secure(**options):
  made = secagg.make(secagg.Options(**options))
  assert made.bind
  return made.bind(EVERYONE)


def private(**options):
  made = dp_fedavg.make(dp_fedavg.Options(noise=0.0, clip=0.5, **options))
  assert made.bind
  return made.bind(EVERYONE)


def uploads(**messages):
  rng = np.random.default_rng(0)
  shared = {
    name: START[name] + rng.uniform(-0.5, 0.5, (4, *START[name].shape))
    for name in (KERNEL, MEAN)
  }
  sent = handmade.uploads(shared, sizes=SIZES)
  return sent.replace(messages=jax.tree.map(jnp.asarray, messages))


def controls():
  drawn = np.random.default_rng(1).uniform(-1, 1, (4, 3, 2))
  return {KERNEL: drawn.astype('f4')}


def rounds(components, sent, arrived):
  """The server on the host and the log of some rounds from the same start.

  Args:
    components: beside FedPav.
    sent: uploads.
    arrived: which uploads are finite in each round.
  """
  made = handmade.algorithm((fedpav.make(), *components))
  seed, public = prng.data(0), jnp.zeros((0, 1, 1, 3), jnp.uint8)
  state = made.init_server(START, jnp.asarray(SIZES), public, seed)
  run, drawn = jax.jit(made.aggregate), jnp.arange(4)
  found = [
    run(state, sent.replace(finite=jnp.asarray(rows)), drawn, k, public, seed)
    for k, rows in enumerate(arrived)
  ]
  return jax.device_get(found)


def summation_of(masks, terms):
  """`(key) -> (sums of terms, uploads in them)`, some uploads being lost."""
  made = secure(dropout=0.3, masks=masks).summation
  assert made

  def add(key):
    ctx = handmade.context(
      ServerCtx, index=jnp.arange(4), valid=jnp.ones(4, bool), key=key
    )
    return made.add(terms, ctx)[1:]

  return add


@functools.cache
def arrived():
  """Which uploads of eight rounds are in the sum; none of an aborted round."""
  made = uniform.make(), secure(bits=20, dropout=0.3)
  logs = rounds(made, uploads(), np.ones((8, 4), bool))
  return np.stack([log['weights'] > 0 for _, log in logs])


# (components, uploads, bits, weights a_k, error of the divisor in roundings).
METHODS = {
  'uniform': (lambda: (uniform.make(),), uploads(), 20, np.ones(4), 0.0),
  'cdw': (
    lambda: (cdw.make(),),
    uploads(cdw=DISTANCES),
    20,
    DISTANCES / 2,
    0.0,
  ),
  # The sum of n_k |a_k| is sent over 2^16 n_max.
  'fednova and scaffold': (
    lambda: (fednova.make(), scaffold.make()),
    uploads(fednova=COUNTS, scaffold=controls()),
    32,
    SIZES / COUNTS / SIZES.max(),
    2**16 * SIZES.max() / np.sort(SIZES * COUNTS)[:3].sum(),
  ),
  'adaptive dp_fedavg': (
    lambda: (private(adaptive=True),),
    uploads(dp_fedavg=np.array([0.5, -0.5, 0.5, 0.5], 'f4')),
    20,
    np.ones(4),
    0.0,
  ),
}


def test_fednova_divides_by_numbers_of_the_sum():
  """The worked formula; running statistics are weighted by size."""
  sent = uploads(fednova=COUNTS)
  made = fednova.make(), secure(masks=False)
  ((server, _),) = rounds(made, sent, np.ones((1, 4), bool))
  share = SIZES / SIZES.sum()
  tau = (share * COUNTS).sum()
  for name, weight in ((KERNEL, tau * share / COUNTS), (MEAN, share)):
    changes = np.asarray(sent.shared[name]) - np.asarray(START[name])
    right = START[name] + np.tensordot(weight, changes, 1)
    np.testing.assert_allclose(server.shared[name][0], right, rtol=5e-5)


DISCRETE = Mechanism(2.0, 1.0, 7, discrete=True)


def test_masks_change_no_bit_of_any_term():
  """Terms of a model, of a number and of a message, for some lost uploads."""
  rng = np.random.default_rng(0)
  weight = jnp.asarray(rng.uniform(0, 1, 4), jnp.float32)

  def term(weight, most, *shape):
    values = jnp.asarray(rng.uniform(-most, most, (4, *shape)), jnp.float32)
    return Weighted(weight, values, most)

  terms = {
    'model': term(weight, 1.0, 3, 2),
    'number': Weighted(jnp.ones(4), weight, 1.0),
    'message': term(-weight, 16.0, 5),
  }
  seen = set()
  add = [jax.jit(summation_of(masks, terms)) for masks in (True, False)]
  for key in jax.random.split(jax.random.key(1), 20):
    found, plain = (one(key) for one in add)
    toy.assert_equal_trees(found, plain)
    sums, rows = jax.device_get(found)
    for name, (own, values, limit, _) in terms.items():
      scale = np.float32(secure_sum.scale(limit, 4, 32))
      own = np.asarray(own).reshape((4,) + (1,) * (values.ndim - 1))
      whole = np.rint(own * np.asarray(values) * scale).astype('i8')
      total = whole[rows].sum(axis=0).astype('f4') / scale
      np.testing.assert_array_equal(sums[name], total)
    seen.add(int(rows.sum()))
  assert {0, 3} <= seen


@pytest.mark.slow
@pytest.mark.parametrize('name', METHODS)
def test_a_method_in_secure_sums_is_that_method(name):
  """Also with lost uploads and aborted rounds, and masks change no bit."""
  make, sent, bits, shares, of_divisor = METHODS[name]
  everyone = np.ones((8, 4), bool)
  found, plain = (
    rounds(
      (*make(), secure(bits=bits, dropout=0.3, masks=masks)), sent, everyone
    )
    for masks in (True, False)
  )
  toy.assert_equal_trees(found, plain)
  assert {0, 3, 4} <= {*arrived().sum(axis=1)}
  error = 4 * secure_sum.rounding(bits) / secure_sum.scale(1.0, 4, bits)
  alone = rounds(make(), sent, arrived())
  for rows, (server, log), (right, _) in zip(
    arrived(), found, alone, strict=True
  ):
    assert log['server']['secagg_aborted'] == (not rows.any())
    weight = shares[rows].sum() if rows.any() else 1.0
    near = error * (1 / (weight - error) + 1 + of_divisor) + 1e-6
    toy.assert_close_trees(
      {n: server.shared[n] for n in (KERNEL,)},
      {n: right.shared[n] for n in (KERNEL,)},
      near,
    )
    # Integers of a message are for values up to 2^10.
    states = {n: server.states[n] for n in right.states}
    toy.assert_close_trees(states, right.states, 2**10 * error + 1e-6)


def test_sums_that_keep_too_little_are_not_that_method():
  """The control: with an eighth of the integers the bound is exceeded."""
  sent, everyone = uploads(), np.ones((1, 4), bool)
  ((alone, _),) = rounds((uniform.make(),), sent, everyone)
  made = uniform.make(), secure(bits=20, bound=8.0)
  ((coarse, _),) = rounds(made, sent, everyone)
  error = secure_sum.rounding(20) / secure_sum.scale(1.0, 4, 20)
  assert np.abs(coarse.shared[KERNEL] - alone.shared[KERNEL]).max() > error


def test_unequal_distances_that_are_all_zero_keep_the_model():
  sent = uploads(cdw=np.zeros(4, 'f4'))
  made = cdw.make(), secure()
  ((server, log),) = rounds(made, sent, np.ones((1, 4), bool))
  np.testing.assert_array_equal(server.shared[KERNEL][0], START[KERNEL])
  assert not log['fell_back'] and not log['weights'].any()


@pytest.mark.parametrize('bits, most', [(24, 1.0), (18, 0.4)])
def test_one_client_moves_the_sum_by_the_clip_and_the_rounding(bits, most):
  """Values between two integers attain the bound if these are the nearest."""
  scale = secure_sum.scale(1.0, 4, bits)
  clip = 1.5 * np.sqrt(6) / scale * (1 + 1e-6)
  bounded = dp_fedavg.make(dp_fedavg.Options(clip=clip)).transport
  summed = secure(bits=bits).summation
  assert bounded and bounded.up and summed
  limit, up = clip + np.sqrt(6) * summed.rounding(1.0), bounded.up
  start = {KERNEL: jnp.zeros((3, 2)), MEAN: jnp.zeros(2)}
  broadcast = handmade.context(types.Broadcast, shared=start, messages={})

  def moved(change, key):
    """The sum with one client; without its contribution it is zero."""
    shared = {KERNEL: change[None], MEAN: jnp.zeros((1, 2))}
    sent = jax.tree.map(lambda x: x[0], handmade.uploads(shared))
    _, sent = up((), sent, broadcast, key)
    ctx = handmade.context(
      ServerCtx, index=jnp.arange(4), valid=jnp.ones(4, bool), key=key
    )
    four = jnp.zeros((4, 3, 2)).at[2].set(sent.shared[KERNEL])
    term = Weighted(jnp.ones(4), four, summed.limit(KERNEL))
    return summed.add({KERNEL: term}, ctx)[1][KERNEL]

  rng = np.random.default_rng(0)
  between = np.full((100, 3, 2), 1.5 * (1 + 5e-7) / scale)
  sizes = 10.0 ** rng.uniform(-9, 3, (50, 1, 1))
  changes = np.concatenate([between, sizes * rng.standard_normal((50, 3, 2))])
  keys = jax.random.split(jax.random.key(0), 150)
  found = jax.jit(jax.vmap(moved))(jnp.asarray(changes, jnp.float32), keys)
  norms = np.linalg.norm(found, axis=(1, 2))
  assert (norms <= limit * (1 + 1e-6)).all()
  assert norms.max() > clip + most * (limit - clip) * (1 - 1e-3)


@pytest.mark.parametrize('clip', [1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
def test_the_sum_is_bounded_for_weights_whose_digits_are_coarse(clip):
  """Each change is 0.51 of the distance between floats near its weight."""
  bounded = dp_fedavg.make(dp_fedavg.Options(clip=clip)).transport
  summed = secure(bits=32).summation
  assert bounded and bounded.up and summed
  number = 100_000
  each = clip / number**0.5
  start = np.full(number, each / 0.51 / 2.0**-23, np.float32)
  signs = np.where(np.arange(number) % 3, 1, -1).astype(np.float32)
  sent = handmade.uploads({KERNEL: start[None] * (1 + 1e-3 * signs)})
  limit = clip + number**0.5 * summed.rounding(summed.limit(KERNEL))

  @jax.jit
  def moved(start, upload):
    broadcast = handmade.context(
      types.Broadcast, shared={KERNEL: start}, messages={}
    )
    _, one = bounded.up((), upload, broadcast, jax.random.key(0))
    four = jnp.zeros((4, number)).at[2].set(one.shared[KERNEL] - start)
    ctx = handmade.context(
      ServerCtx,
      index=jnp.arange(4),
      valid=jnp.ones(4, bool),
      key=jax.random.key(0),
    )
    term = Weighted(jnp.ones(4), four, summed.limit(KERNEL))
    return summed.add({KERNEL: term}, ctx)[1][KERNEL]

  found = moved(jnp.asarray(start), jax.tree.map(lambda x: x[0], sent))
  norm = np.linalg.norm(np.asarray(found, np.float64))
  assert norm <= limit * (1 + dp_fedavg.SLACK)


def test_noise_and_guarantee_are_those_of_clip_and_rounding():
  people = EVERYONE._replace(rounding=0.2, fraction=0.5, poisson=True, rounds=7)
  options = dp_fedavg.Options(noise=2.0, clip=0.3, min_clients=1)
  scale = dp_fedavg.scale_of(options, people)
  assert scale.rounding == 0.2
  # Who is in a round is known to its clients: sampling hides nobody.
  assert dp_fedavg.mechanisms(2.0, people, 7) == [DISCRETE]
  made = dp_fedavg.make(options)
  assert made.bind
  made = made.bind(people)
  assert made.server and made.server.update and made.claim
  claim = made.claim(people)
  assert claim.mechanisms(7) == [[DISCRETE]]
  assert 'sensitivity clip + 0.2 by the rounding' in claim.details
  assert 'RDP of discrete Gaussian noise' in claim.details
  zeros = {'params/a': jnp.zeros((1, 10))}
  ctx = handmade.context(AggregationCtx, key=jax.random.key(0))
  state = made.server.init(handmade.context(ServerInitCtx))
  # The noise is in the sums already.
  _, same = made.server.update(state, zeros, ctx)
  np.testing.assert_array_equal(same['params/a'], zeros['params/a'])
  assert made.aggregation and made.aggregation.noise
  deviation = made.aggregation.noise(state)
  assert deviation == pytest.approx(2.0 * (0.3 * 1.001 + 0.2))


@pytest.mark.parametrize('exact', [None, 0.0])
def test_sampling_counts_only_where_no_client_adds(exact):
  # A sum without a declared rounding is one of clients who know each other.
  people = EVERYONE._replace(rounding=exact, fraction=0.5, poisson=True)
  found = dp_fedavg.mechanisms(2.0, people, 7)
  assert found == [Mechanism(2.0, 0.5, 7) if exact is None else DISCRETE]


def test_every_summation_is_a_sum_of_clients_who_know_each_other(config):
  model = networks.wrap(networks.build(config.model, 3), contract.IMAGE_SHAPE)
  parts = compose.load(('fedpav', 'secagg'), {}, algorithms)
  summation = Summation(lambda *_: _, lambda _: 1.0, 1.0)
  plugin = Component('plugin', summation=summation)
  assert engine.completed(parts[:1], EVERYONE, model).rounding is None
  assert engine.completed((parts[0], plugin), EVERYONE, model).rounding == 0.0
  assert engine.completed(parts, EVERYONE, model).rounding > 0.0


def test_rounding_is_of_the_trained_parameters_that_are_sent(config):
  config = toy.replaced(config, {'model.features': (4, 8)})
  model = networks.wrap(networks.build(config.model, 3), contract.IMAGE_SHAPE)
  parts = compose.load(('fedpav', 'secagg', 'dp_fedavg'), {}, algorithms)
  shared = jax.eval_shape(model.init, jax.random.key(0))
  sent = [
    x.size
    for n, x in shared.items()
    if n.startswith('params/') and 'classifier' not in n
  ]
  many = EVERYONE._replace(clients=CLIENTS * 25)
  people = engine.completed(parts, many, model)
  made = engine.bound(parts, engine.completed(parts, EVERYONE, model))[-1]
  assert made.claim
  details = made.claim(people).details
  norm = np.sqrt(sum(sent)) / 2 / secure_sum.scale(1.0, 4, 32)
  assert f'clip + {accounting.above(norm)} by' in details
  others = parts[0], parts[2]
  people = engine.completed(others, many, model)
  alone = engine.bound(others, people)[-1]
  assert alone.claim
  assert 'rounding' not in alone.claim(people).details


def test_messages_have_the_bits_of_the_integers():
  message = {KERNEL: jnp.zeros((3, 5), jnp.bool_)}
  made = fedpav.make(), scaffold.make()
  for beside, sent in (
    ((), 15),  # of one byte each
    ((secure(bits=32),), 60),
    ((secure(bits=25),), 47),  # 375 bits
  ):
    method = handmade.algorithm((*made, *beside))
    assert round_log.sent_bytes(method, 'scaffold', message) == sent


@pytest.mark.parametrize('rule', [fednova, scaffold])
def test_too_few_bits_for_large_values_are_refused(rule):
  with pytest.raises(errors.ConfigError, match='rounds too coarsely'):
    handmade.algorithm((fedpav.make(), rule.make(), secure(bits=17)))
  handmade.algorithm((fedpav.make(), rule.make(), secure(bits=28)))
  handmade.algorithm((fedpav.make(), cdw.make(), secure(bits=17)))


@pytest.mark.slow
def test_lost_clients_keep_the_controls_they_had(config):
  """Otherwise their change would be missing in the sum for ever."""
  options = {'secagg': {'dropout': 0.3, 'threshold': 3}}
  names = 'fedpav', 'scaffold', 'secagg'
  method = compose.load(names, options, algorithms)
  executor, variables, _ = toy.make_rounds(config, CLIENTS, method)
  server, store = executor.init(variables)
  seen, before = set(), store.stacked().states['scaffold']
  for round_ in range(12):
    server, log = executor.round(server, store, round_)
    after = store.stacked().states['scaffold']
    same = [
      (before[n] == x).reshape(len(x), -1).all(1) for n, x in after.items()
    ]
    kept, before = int((~np.all(same, axis=0)).sum()), after
    arrived = int(log['metrics']['secagg_survivors'])
    assert log['valid'].all() and kept == (arrived if arrived > 2 else 0)
    seen.add(kept)
  assert 3 in seen and 0 in seen


@pytest.mark.slow
def test_runs_are_near_those_without(config):
  """The models of a round and what the server keeps, on 1 and 2 devices."""
  people = tuple(c._replace(num_identities=5) for c in CLIENTS)
  found = []
  for beside, devices in ((), 1), (('secagg',), 1), (('secagg',), 2):
    names = 'fedavg', 'fednova', 'scaffold', 'dppt', *beside
    method = compose.load(names, {}, algorithms)
    executor, variables, _ = toy.make_rounds(config, people, method, devices)
    server, _, _ = toy.run(executor, variables, 2 if beside else 1)
    first, _, _ = toy.run(executor, variables, 1)
    kept = {n: x for n, x in first.states.items() if n != 'secagg'}
    found.append((first.shared, kept, server.shared))
  toy.assert_close_trees(found[0][:2], found[1][:2], 2e-5)
  toy.assert_equal_trees(found[1], found[2])


@functools.cache
def summation(bits, dropout):
  """A compiled sum of one term with noise."""
  made = secure(bits=bits, dropout=dropout).summation
  assert made

  @jax.jit
  def add(key, deviation, values):
    term = Weighted(jnp.ones(4), values, 1.0, deviation)
    ctx = handmade.context(
      ServerCtx, index=jnp.arange(4), valid=jnp.ones(4, bool), key=key
    )
    _, sums, arrived = made.add({'a': term}, ctx)
    return sums['a'], arrived

  return add


def released(key, deviation, values, bits=32, dropout=0.0):
  """The sum of a term with noise, and which uploads are in it."""
  add = summation(bits, dropout)
  found, arrived = add(key, jnp.float32(deviation), jnp.asarray(values))
  return np.asarray(found, np.float64), np.asarray(arrived)


@pytest.mark.parametrize('deviation', [0.01, 3.0])
def test_noise_on_integers_has_the_deviation_and_does_not_wrap(deviation):
  """Noise of 3 is far beyond the range of a sum of four values of 1."""
  values = np.random.default_rng(0).uniform(-1, 1, (4, 20000)).astype('f4')
  found, _ = released(jax.random.key(0), deviation, values)
  noise = found - values.astype('f8').sum(axis=0)
  assert noise.std() == pytest.approx(deviation, rel=0.03)
  assert abs(noise.mean()) < 4 * deviation / np.sqrt(noise.size)
  assert stats.kstest(noise / deviation, 'norm').pvalue > 1e-3
  again, _ = released(jax.random.key(0), deviation, values)
  other, _ = released(jax.random.key(1), deviation, values)
  assert (again == found).all() and (other != found).any()


def test_an_aborted_round_has_no_noise():
  values = np.ones((4, 8), 'f4')
  outcomes = set()
  for key in jax.random.split(jax.random.key(0), 12):
    found, arrived = released(key, 0.5, values, dropout=0.5)
    assert found.any() == arrived.any()
    outcomes.add(bool(arrived.any()))
  assert outcomes == {True, False}


def test_a_summation_that_draws_no_noise_is_refused_beside_it():
  plain = secure()
  plain = plain._replace(properties=())
  made = dp_fedavg.make(dp_fedavg.Options(noise=1.0)).bind
  assert made
  with pytest.raises(errors.ConfigError, match='does not draw the noise of'):
    handmade.algorithm((fedpav.make(), made(EVERYONE), plain))


@pytest.mark.slow
def test_noise_on_integers_is_drawn_once_on_any_number_of_devices(config):
  config = toy.replaced(
    config, {'batch_stats_rule': 'keep_server', 'model.norm': 'group'}
  )
  options = {'dp_fedavg': {'noise': 0.3, 'adaptive': True, 'clip': 0.5}}
  method = compose.load(('fedpav', 'dp_fedavg', 'secagg'), options, algorithms)
  shared = []
  for devices in (1, 2):
    executor, variables, _ = toy.make_rounds(config, CLIENTS, method, devices)
    server, _, _ = toy.run(executor, variables, 2)
    shared.append(server.shared)
  toy.assert_equal_trees(*shared)
