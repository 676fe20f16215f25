import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.algorithms import cdw, fednova, fedpav
from fedreid_jax.core.types import Batch
from fedreid_jax.data import sampling
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.method.contexts import RoundEndCtx, ServerInitCtx
from fedreid_jax.method.sums import Gather

FEDPAV = fedpav.make()
SCORES = [[1, 0, 0], [0, 1, 0]]  # the scores of (x, y) are (x, y, 0)
START = handmade.variables([[1, 0], [0, 2], [1, 1]], SCORES)
TURNED = handmade.variables([[3, 4], [0, 5], [-1, -1]], SCORES)
# Images that show the first, the second and the third row of a kernel.
ROWS = [[10, 0, 0], [0, 10, 0], [0, 0, 10]]


def distance(
  end, start=START, rows=ROWS, valid=None, identities=3, key=0, model=None
):
  """What a client sends that trained `start` to `end`."""
  ctx = handmade.context(
    RoundEndCtx,
    task=handmade.task(num_identities=identities),
    start=start,
    variables=end,
    model=model or handmade.LINEAR,
    test_transform=handmade.transform,
    key=jax.random.key(key),
  )
  first = handmade.batch(rows, valid)._replace(images=handmade.pixels(rows))
  state, sent = cdw.make().client.round_end(first, ctx)
  assert state == ()
  return float(sent)


@pytest.mark.parametrize(
  'rows, expected',
  [(ROWS[:1], 0.4), (ROWS[1:2], 0.0), (ROWS[2:], 2.0), (ROWS, 0.8)],
  ids=['cosine 0.6', 'longer', 'opposite', 'mean'],
)
def test_worked_numbers(rows, expected):
  np.testing.assert_allclose(distance(TURNED, rows=rows), expected, atol=1e-6)


@pytest.mark.parametrize('factor', [1e-3, 0.25, 3.0, 1e3])
def test_scaling_scores_by_a_positive_number_changes_nothing(factor):
  scores = handmade.HEAD
  louder = {**TURNED, scores: factor * TURNED[scores]}
  np.testing.assert_allclose(distance(louder), distance(TURNED), rtol=1e-5)
  np.testing.assert_allclose(
    distance(TURNED, {**START, scores: factor * START[scores]}), 0.8, rtol=1e-5
  )


def test_a_model_that_did_not_change_has_no_distance():
  assert abs(distance(START)) < 1e-6
  assert abs(distance({n: 2.0 * x for n, x in START.items()})) < 1e-6


def test_padded_rows_and_identities_do_not_count():
  assert distance(TURNED, valid=[True, False, False]) == pytest.approx(0.4)
  other = {**TURNED, handmade.HEAD: TURNED[handmade.HEAD].at[:, 2].set(7.0)}
  assert distance(other, identities=2) == distance(TURNED, identities=2)
  assert distance(other) != pytest.approx(distance(TURNED), rel=0.01)


def test_moments_are_those_of_the_batch_unless_it_is_one_image():
  """Another running mean counts for a single real image only."""
  moved = {**START, handmade.MEAN: jnp.array([0.0, 1.0])}
  assert distance(moved) == distance(moved, valid=[True, True, False]) == 0.0
  # (1, 0) becomes (1, -1)
  alone = distance(moved, valid=[True, False, False])
  np.testing.assert_allclose(alone, 1 - np.sqrt(0.5), rtol=1e-5)


def test_no_random_numbers():
  assert distance(TURNED, key=1) == distance(TURNED, key=2)


def test_no_scores_at_all_are_finite():
  zero = handmade.variables()
  assert distance(zero, zero) == pytest.approx(1.0)


def two(**extras):
  """Two clients of one and three images, at 4 and 8."""
  kernel = jnp.broadcast_to(jnp.array([4.0, 8.0])[:, None, None], (2, 3, 2))
  mean = jnp.broadcast_to(jnp.array([[0.0], [4.0]]), (2, 2))
  shared = {handmade.KERNEL: kernel, handmade.MEAN: mean}
  return handmade.uploads(shared, [1, 3], **extras)


@pytest.mark.parametrize(
  'distances, expected, fell_back',
  [([0.3, 0.1], 0.25, False), ([0.0, 0.2], 1.0, False), ([0, 0], 0.75, True)],
)
def test_the_server_weighs_by_distance_or_else_by_size(
  distances, expected, fell_back
):
  server, log = handmade.serve(
    (FEDPAV, cdw.make()), handmade.variables(1.0), two(cdw=distances)
  )
  np.testing.assert_allclose(log['weights'], [1 - expected, expected])
  np.testing.assert_allclose(
    server.shared[handmade.KERNEL], 4 + 4 * expected, rtol=1e-6
  )
  np.testing.assert_allclose(
    server.shared[handmade.MEAN], 4 * expected, rtol=1e-6
  )
  assert log['fell_back'] == fell_back


def test_equal_clients_come_back_but_not_by_the_printed_weights():
  """The conference's Algorithm 3 as printed, m_k over the sum of 1 / m_k."""
  worth = jnp.array([0.1, 0.4, 0.2])
  sent, got, _ = handmade.equal_clients((FEDPAV, cdw.make()), cdw=worth)
  toy.assert_close_trees(got, sent, 1e-6)

  def printed(messages, ctx):
    del messages
    return jnp.where(ctx.members, worth / (1 / worth).sum(), 0.0)

  sent, got, log = handmade.equal_clients(
    (FEDPAV, Component('printed', aggregation=Gather(printed)))
  )
  assert not log['fell_back']
  for name, leaf in sent.items():
    assert np.abs(got[name] - leaf).min() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize('budget', [0.0, 700 / 2**20], ids=['whole', 'cut'])
def test_the_batch_is_the_first_of_the_round_not_augmented(
  config, clients, budget
):
  """Whether a round's images come at once or segment by segment."""
  config = toy.replaced(
    config, {'local.epochs': 2, 'execution.image_budget_mb': budget}
  )
  column = jnp.zeros(4, jnp.int32)
  none = Batch(
    jnp.zeros((4, *toy.IMAGE_SHAPE), 'u1'), *[column] * 3, column > 0
  )
  witness = cdw.make().client._replace(
    init=lambda key, variables: none, round_end=lambda first, ctx: (first, ())
  )
  components = (FEDPAV, Component('witness', client=witness))
  executor, variables, _ = toy.make_rounds(config, clients, components)
  _, states, _ = toy.run(executor, variables, 2)
  planner, *_ = sampling.make(config.local, clients, config.seed)
  for k, client in enumerate(clients):
    found = jax.tree.map(lambda leaf, k=k: leaf[k], states.states['witness'])
    plan = planner(1, k)
    assert len(plan.rows) > 1 and (plan.rows != plan.rows[0]).any()
    rows = plan.rows[0]
    np.testing.assert_array_equal(found.labels, client.labels[rows])
    np.testing.assert_array_equal(found.valid, plan.valid[0])
    np.testing.assert_array_equal(found.images, client.images()[rows])


def test_public_images_may_take_the_place_of_the_clients_own():
  component = cdw.make(cdw.Options(batch='public', images=2))
  public = handmade.pixels(ROWS)
  slot = component.server.init(
    handmade.context(ServerInitCtx, public=jnp.asarray(public))
  )
  np.testing.assert_array_equal(slot, public[:2])
  sent = component.server.message(slot)
  ctx = handmade.context(
    RoundEndCtx,
    message=sent,
    task=handmade.task(),
    start=START,
    variables=TURNED,
    model=handmade.LINEAR,
    test_transform=handmade.transform,
  )
  np.testing.assert_allclose(
    component.client.round_end((), ctx)[1], 0.2, rtol=1e-5
  )
  assert component.client.pre_step is None and cdw.make().client.pre_step


def test_public_images_must_be_there(clients):
  cdw.make().bind(Participants(clients, 0, 4))
  check = cdw.make(cdw.Options(batch='public', images=8)).bind
  check(Participants(clients, 8, 4))
  with pytest.raises(errors.ConfigError, match='data.public'):
    check(Participants(clients, 0, 4))
  with pytest.raises(errors.DataError, match='7 public images.*cdw.images'):
    check(Participants(clients, 7, 4))


def test_unknown_batch():
  with pytest.raises(errors.ConfigError, match='cdw.batch'):
    cdw.make(cdw.Options(batch='lokal'))


def test_two_ways_to_weigh_are_refused():
  with pytest.raises(errors.ConfigError, match="'cdw' and 'fednova'"):
    handmade.algorithm((FEDPAV, cdw.make(), fednova.make()))
