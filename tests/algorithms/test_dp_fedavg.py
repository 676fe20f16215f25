import dataclasses

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.algorithms import dp_fedavg, fedopt, fedpav, uniform
from fedreid_jax.algorithms.statistics import privacy
from fedreid_jax.config import recipes, validation
from fedreid_jax.core import types
from fedreid_jax.method import guarantee
from fedreid_jax.method.accounting import Mechanism
from fedreid_jax.method.component import ClientHooks, Component, Participants
from fedreid_jax.method.contexts import ReceiveCtx
from fedreid_jax.training import contract

KERNEL, HEAD, MEAN = handmade.KERNEL, handmade.HEAD, handmade.MEAN
FEDPAV = fedpav.make()
CLIENTS = contract.toy_clients()


def bound(number=4, fraction=1.0, **options):
  made = dp_fedavg.make(dp_fedavg.Options(min_clients=1, **options))
  people = tuple(contract.toy_client(f'c{k}', 4) for k in range(number))
  assert made.bind
  return made.bind(Participants(people, 0, number, fraction, fraction < 1, 1))


@pytest.mark.parametrize('fraction', [0.5, 1.0])
def test_a_run_of_everyone_says_that_sampling_does_not_help(fraction):
  notice = bound(fraction=fraction).notice
  assert ('sampling rate 1' in notice) == (fraction == 1.0)


def send(component, shared, received, **messages):
  """Uploads `[K]` as the server receives them, from what clients trained."""
  broadcast = handmade.context(
    types.Broadcast, shared=received, messages=messages
  )
  uploads = handmade.uploads(shared)
  rows = [
    component.transport.up(
      (),
      jax.tree.map(lambda x, k=k: x[k], uploads),
      broadcast,
      jax.random.key(k),
    )[1]
    for k in range(len(uploads.num_steps))
  ]
  return jax.tree.map(lambda *x: jnp.stack(x), *rows)


def trained(rng, number=4, scale=1.0):
  return {
    KERNEL: 1 + scale * rng.standard_normal((number, 3, 2)).astype('f4'),
    MEAN: rng.standard_normal((number, 2)).astype('f4'),
  }


START = handmade.variables(1.0, 0.0, 2.0)
SHARED = {n: START[n] for n in (KERNEL, MEAN)}


@pytest.mark.slow
def test_without_noise_and_clip_it_is_the_mean(config):
  config = toy.replaced(config, {'batch_stats_rule': 'keep_server'})
  found = []
  options = dp_fedavg.Options(noise=0.0, clip=1e6)
  for made in (dp_fedavg.make(options), uniform.make()):
    executor, variables, _ = toy.make_rounds(config, CLIENTS, (FEDPAV, made))
    found.append(toy.run(executor, variables, 2)[0].shared)
  toy.assert_close_trees(*found, 1e-5)


def test_updates_are_clipped_and_averaged_over_the_expected_cohort():
  made = bound(10, 0.4, noise=0.0, clip=0.5)
  values = trained(np.random.default_rng(0), scale=3.0)
  state, _ = handmade.serve(
    (FEDPAV, made), START, send(made, values, SHARED), clients=10
  )
  change = values[KERNEL].reshape(4, 6) - 1
  norms = np.linalg.norm(change, axis=1, keepdims=True)
  assert (norms > 0.5).all()
  wanted = 1 + (0.5 * change / norms).sum(0) / 4.0  # not over ten, nor |S|
  np.testing.assert_allclose(state.shared[KERNEL].ravel(), wanted, rtol=1e-5)
  one = {n: x[:1] for n, x in values.items()}
  alone, _ = handmade.serve(
    (FEDPAV, made), START, send(made, one, SHARED), clients=10
  )
  np.testing.assert_allclose(
    alone.shared[KERNEL].ravel(), 1 + 0.5 * change[0] / norms[0] / 4, rtol=1e-5
  )
  np.testing.assert_allclose(state.shared[MEAN][0], 2.0, rtol=1e-6)


def test_a_gathered_round_divides_by_the_expected_cohort_as_well():
  made = bound(10, 0.4, noise=0.0, clip=0.5)
  values = trained(np.random.default_rng(7))
  few = {n: x[:3] for n, x in values.items()}
  sent = send(made, few, SHARED)
  summed, _ = handmade.serve((FEDPAV, made), START, sent, clients=10)
  gathering = (FEDPAV, made, handmade.READER)
  gathered, _ = handmade.serve(gathering, START, sent, clients=10)
  toy.assert_close_trees(summed.shared, gathered.shared, 1e-6)


@pytest.mark.parametrize('value', [np.nan, np.inf, 1e10, 1e30, -3e38])
def test_one_client_moves_the_sum_by_the_clip_at_most(value):
  made = bound(noise=0.0, clip=0.5)
  values = trained(np.random.default_rng(1))
  wrong = {n: np.array(x) for n, x in values.items()}
  wrong[KERNEL][2, 0, 0] = wrong[MEAN][2, 0] = value
  sent = send(made, wrong, SHARED)
  assert sent.finite.all() and not sent.messages
  np.testing.assert_array_equal(sent.shared[MEAN], np.full((4, 2), 2.0))
  moved = np.linalg.norm(np.asarray(sent.shared[KERNEL]) - 1, axis=(1, 2))
  assert (moved <= 0.5 * (1 + 1e-5)).all()
  if not abs(value) < 1e15:
    assert moved[2] == 0
  else:
    assert moved[2] == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize('adaptive', [False, True])
@pytest.mark.parametrize('clip', [1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
def test_what_is_sent_is_within_the_clip_for_large_weights(clip, adaptive):
  """Each change is 0.51 of the distance between floats near its weight."""
  made = bound(noise=0.0, clip=clip, adaptive=adaptive)
  number = 100_000
  each = clip / number**0.5
  start = np.float32(each / 0.51 / 2.0**-23) * np.ones(number, np.float32)
  signs = np.where(np.arange(number) % 3, 1, -1).astype(np.float32)
  crafted = {KERNEL: start[None] * (1 + np.float32(1e-3) * signs)}
  messages = {'dp_fedavg': jnp.float32(clip)} if adaptive else {}

  @jax.jit
  def sent_from(start):
    return send(made, crafted, {KERNEL: start}, **messages).shared[KERNEL][0]

  sent = np.asarray(sent_from(start), np.float64)
  norm = np.linalg.norm(sent - start.astype(np.float64))
  assert norm <= clip * (1 + 1e-5)


def test_every_leaf_of_an_upload_is_bounded_public_or_refused():
  names = {field.name for field in dataclasses.fields(types.Upload)}
  public = {'index', 'num_examples', 'num_steps'}
  private = {'shared', 'finite', 'messages', 'lost'}
  assert names == public | private, 'a leaf is new'
  made = bound(noise=0.0, clip=0.5, adaptive=True)
  broadcast = handmade.context(
    types.Broadcast, shared=SHARED, messages={'dp_fedavg': jnp.float32(0.5)}
  )
  assert made.transport and made.transport.up

  def sent(seed, finite):
    values = trained(np.random.default_rng(seed), 1)
    uploads = handmade.uploads(values, sizes=[7], steps=[3], other=[seed])
    one = jax.tree.map(lambda x: x[0], uploads)
    one = one.replace(finite=jnp.bool_(finite))
    return made.transport.up((), one, broadcast, jax.random.key(0))[1]

  first, second = sent(1, True), sent(2, False)
  for name in (*public, 'finite'):
    assert getattr(first, name) == getattr(second, name), name
  changes = [
    np.linalg.norm(np.asarray(x.shared[KERNEL] - SHARED[KERNEL]))
    for x in (first, second)
  ]
  assert 0.4 < min(changes) and max(changes) <= 0.5 * (1 + 1e-5)
  np.testing.assert_array_equal(first.shared[MEAN], SHARED[MEAN])
  np.testing.assert_array_equal(second.shared[MEAN], SHARED[MEAN])
  assert abs(first.messages['dp_fedavg']) == 0.5
  # A message of another component passes, and ends the guarantee.
  assert first.messages['other'] != second.messages['other']
  people = tuple(contract.toy_client(f'c{k}', 4) for k in range(4))
  held = guarantee.Guarantee(
    (FEDPAV, made), Participants(people, 0, 4, rounds=1)
  )
  held.check(['dp_fedavg'])
  with pytest.raises(errors.ConfigError, match="message of 'other' has no"):
    held.check(['dp_fedavg', 'other'])


def test_a_client_that_diverged_is_not_told_by_what_arrives():
  made = bound(clip=0.5)
  sent = handmade.uploads(trained(np.random.default_rng(2)))
  one = jax.tree.map(lambda x: x[0], sent).replace(finite=jnp.bool_(False))
  broadcast = handmade.context(types.Broadcast, shared=SHARED, messages={})
  assert made.transport and made.transport.up
  _, sent = made.transport.up((), one, broadcast, jax.random.key(0))
  assert sent.finite and sent.lost


@pytest.mark.slow
@pytest.mark.parametrize(
  'part, factor', [('classifier', np.inf), ('backbone', 1e20)]
)
def test_a_client_that_diverged_keeps_the_state_before_the_round(
  config, part, factor
):
  def poisoned(variables, state, ctx):
    del state
    bad = (ctx.task.index == 2) & (ctx.round == 1)
    values = [x.sum() for n, x in variables.items() if f'params/{part}' in n]
    return jnp.where(bad, factor, 0.0) * sum(values), {}

  poison = Component('poison', client=ClientHooks(loss=poisoned))
  config = toy.replaced(
    config, {'model.norm': 'group', 'batch_stats_rule': 'keep_server'}
  )
  executor, variables, _ = toy.make_rounds(
    config, CLIENTS, (FEDPAV, bound(noise=0.0, clip=9.0), poison)
  )
  server, states = executor.init(variables)
  found = []
  for number in range(3):
    server, log = executor.round(server, states, number)
    found.append(states.stacked().personal[HEAD].copy())
    assert log['valid'].all()
  assert np.isfinite(found[1]).all()
  moved = (found[1] != found[0]).any(axis=(1, 2))
  assert moved.tolist() == [True, True, False, True]
  assert (found[2] != found[1]).any(axis=(1, 2)).all()


def noise_of(number_of_uploads, seed_round=0):
  """What 10^5 coordinates of the server's model move by, without updates."""
  made = bound(10, 0.4, noise=2.0, clip=0.3)
  assert made.server and made.server.update
  models = {
    'params/a': jnp.zeros((1, 60000)),
    'params/b': jnp.zeros((1, 40000)),
  }
  ctx = handmade.context(
    dp_fedavg.AggregationCtx,
    key=jax.random.key(seed_round),
    members=jnp.arange(4)[None] < number_of_uploads,
  )
  state = made.server.init(ctx)
  _, found = made.server.update(state, models, ctx)
  return {n: np.asarray(x[0]) for n, x in found.items()}


def test_noise_is_added_in_every_round_also_without_clients():
  for num in (0, 4):
    found = np.concatenate([*noise_of(num).values()])
    assert found.std() == pytest.approx(2.0 * 0.3 / 4.0, rel=0.01)
    assert abs(found.mean()) < 0.003


def test_noise_is_independent_over_rounds_and_leaves():
  one, other = noise_of(4, 0), noise_of(4, 1)
  n = 40000
  pairs = [
    (one['params/a'][:n], one['params/b']),
    (one['params/a'], other['params/a']),
  ]
  assert all(abs(np.corrcoef(*pair)[0, 1]) < 0.02 for pair in pairs)


def test_weights_by_images_are_capped():
  made = bound(4, 1.0, noise=0.0, clip=100.0, n_max=2)
  values = trained(np.random.default_rng(3))
  sent = dataclasses.replace(
    send(made, values, SHARED), num_examples=jnp.array([1.0, 2.0, 8.0, 1.0])
  )
  state, _ = handmade.serve((FEDPAV, made), START, sent)
  change = values[KERNEL] - 1
  # All four clients of the run have four images, so that A is 4.
  wanted = 1 + np.tensordot([0.5, 1, 1, 0.5], change, 1) / 4
  np.testing.assert_allclose(state.shared[KERNEL][0], wanted, rtol=1e-5)


@pytest.mark.parametrize('first', [0.1, 10.0])
def test_the_clip_finds_the_median_from_both_sides(first):
  made = bound(100, 1.0, noise=0.5, clip=first, adaptive=True)
  server, rng = made.server, np.random.default_rng(0)
  assert server and server.receive and server.update and server.message
  norms = rng.lognormal(0.0, 0.5, 100)  # of median 1
  state = server.init(handmade.context(dp_fedavg.ServerInitCtx))

  @jax.jit
  def step(state, bits, key):
    senders = ReceiveCtx(jnp.arange(100))
    state = server.receive(state, bits, jnp.ones(100, bool), senders)
    ctx = handmade.context(dp_fedavg.AggregationCtx, key=key)
    return server.update(state, {}, ctx)[0]

  for round_ in range(60):
    bits = (norms <= float(server.message(state))) - 0.5
    state = step(state, jnp.asarray(bits, 'f4'), jax.random.key(round_))
  assert 0.8 < float(server.message(state)) < 1.25


@pytest.mark.parametrize('in_sums', [False, True])
def test_the_clip_stays_in_a_round_that_secure_aggregation_aborts(in_sums):
  people = Participants(CLIENTS, 0, 4, 1.0, False, 1)
  options = dp_fedavg.Options(
    min_clients=1, adaptive=True, quantile=0.9, noise=0.01
  )
  bind = dp_fedavg.make(options).bind
  assert bind
  server = bind(people._replace(rounding=0.0 if in_sums else None)).server
  assert server and server.update
  state = server.init(handmade.context(dp_fedavg.ServerInitCtx))
  for arrived in (False, True):
    ctx = handmade.context(
      dp_fedavg.AggregationCtx,
      key=jax.random.key(0),
      members=jnp.full((1, 4), arrived),
    )
    (clip, _), _ = server.update(state, {}, ctx)
    # Without secure aggregation a round without clients looks like any other.
    assert (clip != state[0]) == (arrived or not in_sums)


def test_bits_say_whether_the_norm_is_below_the_clip():
  made = bound(4, adaptive=True, noise=0.01)
  values = trained(np.random.default_rng(4))
  norms = np.linalg.norm(values[KERNEL] - 1, axis=(1, 2))
  clip = float(np.median(norms))
  sent = send(made, values, SHARED, dp_fedavg=jnp.float32(clip))
  np.testing.assert_array_equal(
    sent.messages['dp_fedavg'], (norms <= clip) - 0.5
  )
  moved = np.linalg.norm(np.asarray(sent.shared[KERNEL]) - 1, axis=(1, 2))
  np.testing.assert_allclose(moved, np.minimum(norms, clip), rtol=1e-5)


def test_the_bits_cost_a_part_of_the_noise():
  scale = dp_fedavg.Scale(1.0, 100.0, 100.0)
  assert scale.on_update(True) == pytest.approx(1.00504, abs=1e-5)
  assert scale.on_update(False) == 1.0
  together = scale.on_update(True) ** -2 + (2 * scale.bits) ** -2
  assert together == pytest.approx(1.0)
  with pytest.raises(errors.ConfigError, match='too few to measure'):
    dp_fedavg.Scale(1.0, 9.0, 9.0).on_update(True)


def test_a_norm_over_all_leaves():
  changes = {'a': jnp.full(3, 2.0), 'b': jnp.full((2, 2), 1.0)}
  found, below = privacy.clipped(changes, jnp.float32(2.0))
  np.testing.assert_allclose(found['a'], 1.0)
  np.testing.assert_allclose(found['b'], 0.5)
  assert not below
  same, below = privacy.clipped(changes, jnp.float32(4.0))
  np.testing.assert_array_equal(same['b'], changes['b'])
  assert below
  zero, below = privacy.clipped({'a': jnp.zeros(2)}, jnp.float32(1.0))
  assert not zero['a'].any() and below


def test_the_servers_optimiser_sees_the_noise():
  made = bound(noise=0.0, clip=0.5)
  step = fedopt.make(fedopt.Options(name='sgd', lr=0.5, momentum=0.0))
  values = trained(np.random.default_rng(5))
  sent = send(made, values, SHARED)
  one, _ = handmade.serve((FEDPAV, made), START, sent)
  half, _ = handmade.serve((FEDPAV, made, step), START, sent)
  np.testing.assert_allclose(
    half.shared[KERNEL] - 1, 0.5 * (one.shared[KERNEL] - 1), atol=1e-6
  )


@pytest.mark.parametrize(
  'options, participants, message',
  [
    ({}, (CLIENTS, 0, 4), '4 clients are too few.*needs 100'),
    (
      {'min_clients': 1, 'delta': 0.1},
      (CLIENTS, 0, 4),
      r'above 1 / \(10 x 4 clients\)',
    ),
  ],
)
def test_claims_that_cannot_hold(options, participants, message):
  made = dp_fedavg.make(dp_fedavg.Options(**options))
  assert made.claim
  with pytest.raises(errors.ConfigError, match=message):
    made.claim(Participants(*participants))


def test_cohorts_of_a_fixed_size_are_samples_without_replacement():
  people = tuple(contract.toy_client(f'c{k}', 3) for k in range(10))
  participants = Participants(people, 0, 4, 0.35, False, 7)
  options = dp_fedavg.Options(noise=2.0, min_clients=1)
  scale = dp_fedavg.scale_of(options, participants)
  assert (scale.clients, scale.weight) == (4.0, 4.0)  # not 3.5
  made = dp_fedavg.make(options)
  assert made.bind
  made = made.bind(participants)
  assert made.claim
  claim = made.claim(participants)
  expected = Mechanism(2.0, 0.4, 7, population=10, places=4, fixed=True)
  assert claim.mechanisms(7) == [[expected]]
  assert claim.details.startswith(
    'zero-out, the smaller of RDP and of PLD with all clients, noise 2, 4 of '
    '10 clients in every round; '
  )
  # With all clients, or with those that add up, nobody is sampled.
  everyone = participants._replace(cohort=10, fraction=1.0)
  assert dp_fedavg.mechanisms(2.0, everyone, 7) == [Mechanism(2.0, 1.0, 7)]
  everyone = participants._replace(cohort=10, fraction=0.95)
  assert dp_fedavg.mechanisms(2.0, everyone, 7) == [Mechanism(2.0, 1.0, 7)]
  added = participants._replace(rounding=0.1)
  discrete = Mechanism(2.0, 1.0, 7, discrete=True)
  assert dp_fedavg.mechanisms(2.0, added, 7) == [discrete]


def test_who_is_available_is_no_random_sample():
  config = recipes.recipe('dp_fedavg')
  config.cohort, config.cohort_max = 'fixed', 0
  validation.validate(config)
  config.availability.mean = 0.5
  with pytest.raises(errors.ConfigError, match='breaks the random sampling'):
    validation.validate(config)


@pytest.mark.slow
def test_epsilon_chooses_the_noise():
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  people = tuple(contract.toy_client(f'c{k}', 3) for k in range(100))
  participants = Participants(people, 0, 100, 0.1, True, 400)
  options = dp_fedavg.Options(epsilon=8.0, delta=1e-3)
  scale = dp_fedavg.scale_of(options, participants)
  assert scale.noise == pytest.approx(1.1765, abs=2e-3)
  assert (scale.clients, scale.weight) == (10.0, 10.0)
