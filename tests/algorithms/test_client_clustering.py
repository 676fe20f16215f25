import functools

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from scipy.sparse import csgraph

from fedreid_jax import errors
from fedreid_jax.algorithms import cdw, client_clustering, fedpav, kd
from fedreid_jax.method import aggregation
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.method.sums import Gather

KERNEL, MEAN = handmade.KERNEL, handmade.MEAN
FEDPAV = fedpav.make()
# Two images that show the first and the second row of a kernel.
PUBLIC = handmade.pixels([[10, 0, 0], [0, 10, 0]])
# By all features the first two are alike, and the last two; by their mean the
# first and the third, and the other two. In another view of the images, whose
# rows are others, it is not so.
PLANTED = np.array(
  [
    [[1.2, 0], [0, 1], [1, 1]],
    [[1, 0], [0, 1.2], [2, 2]],
    [[0, 1], [1.2, 0], [3, 3]],
    [[0, 1.2], [1, 0], [4, 4]],
  ]
)
# Running means of the clients; subtracted, they would make the outer two alike.
MEANS = np.array([[-5.0, 0], [0, -5], [0, -5], [-5, 0]])
SIZES = [1, 3, 2, 6]


def uploads(index=(0, 1, 2, 3), kernels=PLANTED, **extras):
  shared = {KERNEL: kernels, MEAN: MEANS}
  return handmade.uploads(shared, SIZES, index=index, **extras)


def serve(*rounds, clients, more=(), **arguments):
  return handmade.serve(
    (
      FEDPAV,
      client_clustering.make(client_clustering.Options(images=2, **arguments)),
      *more,
    ),
    handmade.variables(9.0),
    *rounds,
    clients=clients,
    public=PUBLIC,
  )


def pair(i, j, weights=SIZES):
  return np.average(PLANTED[[i, j]], axis=0, weights=[weights[i], weights[j]])


@pytest.mark.parametrize(
  'represent, pairs',
  [('flatten', ((0, 1), (2, 3))), ('mean', ((0, 2), (1, 3)))],
)
def test_planted_pairs_share_the_mean_of_the_two(represent, pairs):
  """By the features of the public images, whatever the running means."""
  server, log = serve(uploads(), clients=4, represent=represent)
  groups = server.groups
  np.testing.assert_array_equal(groups, log['groups'])
  assert len(set(groups.tolist())) == 2
  for i, j in pairs:
    assert groups[i] == groups[j]
    np.testing.assert_allclose(
      server.shared[KERNEL][groups[i]], pair(i, j), rtol=1e-6
    )


def test_equal_clients_are_one_group_and_come_back():
  sent, got, log = handmade.equal_clients(
    (FEDPAV, client_clustering.make(client_clustering.Options(images=3)))
  )
  assert len(set(log['groups'].tolist())) == 1
  toy.assert_close_trees(got, sent, 1e-6)


def test_with_cdw_distances_weigh_within_a_group():
  worth = [0.1, 0.3, 0.2, 0.2]
  server, _ = serve(uploads(cdw=worth), clients=4, more=(cdw.make(),))
  for i, j in ((0, 1), (2, 3)):
    np.testing.assert_allclose(
      server.shared[KERNEL][server.groups[i]],
      pair(i, j, worth),
      rtol=1e-6,
      atol=1e-6,  # one of the wanted values is 0
    )


def test_who_was_not_drawn_keeps_the_model_of_its_group():
  """Four of six clients a round; the second round draws other ones."""
  index = (0, 2, 3, 5)
  one, _ = serve(uploads(index), clients=6)
  np.testing.assert_array_equal(one.groups[[1, 4]], 0)
  np.testing.assert_array_equal(one.shared[KERNEL][0], 9.0)
  assert 0 not in one.groups[list(index)]
  two, _ = serve(uploads(index), uploads((0, 1, 4, 5)), clients=6)
  for k in (2, 3):  # of both first groups one client is absent
    assert two.groups[k] == one.groups[k]
    np.testing.assert_array_equal(
      two.shared[KERNEL][two.groups[k]], one.shared[KERNEL][one.groups[k]]
    )
  assert not set(two.groups[[0, 1, 4, 5]]) & set(two.groups[[2, 3]])


def test_a_lost_upload_leaves_its_client_where_it_was():
  kernels = PLANTED.copy()
  kernels[1] = np.nan
  server, log = serve(uploads(), uploads(kernels=kernels), clients=4)
  first, _ = serve(uploads(), clients=4)
  assert log['valid'].tolist() == [True, False, True, True]
  group = server.groups[1]
  assert group == first.groups[1] and (server.groups == group).sum() == 1
  np.testing.assert_allclose(
    server.shared[KERNEL][group], pair(0, 1), rtol=1e-6
  )
  assert np.isfinite(server.shared[KERNEL]).all()


def test_numbers_of_groups_never_collide_with_those_of_absent_clients():
  """Random groups, cohorts and partitions of six clients, four drawn."""
  rng, cases, num, drawn = np.random.default_rng(0), 300, 6, 4
  groups = rng.integers(0, num, (cases, num)).astype('i4')
  index = np.sort(
    rng.permuted(np.tile(np.arange(num), (cases, 1)), axis=1)[:, :drawn]
  )
  arrived = rng.random((cases, drawn)) < 0.8
  wanted = rng.integers(0, drawn, (cases, drawn))
  clusters = np.tile(np.arange(drawn), (cases, 1))
  for case in range(cases):
    for i in np.flatnonzero(arrived[case]):
      alike = arrived[case] & (wanted[case] == wanted[case, i])
      clusters[case, i] = np.flatnonzero(alike)[0]
  numbered = jax.jit(jax.vmap(client_clustering._free_groups))(
    groups, index, arrived, clusters
  )
  numbered = np.asarray(numbered)
  assert numbered.dtype == np.int32
  for case in range(cases):
    here, new = arrived[case], numbered[case]
    absent = np.setdiff1d(np.arange(num), index[case][here])
    assert not set(new[here]) & set(groups[case][absent])
    assert ((new >= 0) & (new < num)).all()
    np.testing.assert_array_equal(new[~here], groups[case][index[case][~here]])
    same = clusters[case][here][:, None] == clusters[case][here]
    np.testing.assert_array_equal(new[here][:, None] == new[here], same)


def test_public_images_and_three_clients_are_needed(clients):
  check = client_clustering.make(client_clustering.Options(images=8)).bind
  check(Participants(clients, 8, 3))
  with pytest.raises(errors.ConfigError, match='fraction'):
    check(Participants(clients, 8, 2))
  with pytest.raises(errors.ConfigError, match='data.public'):
    check(Participants(clients, 0, 3))
  with pytest.raises(
    errors.DataError, match='7 public images.*client_clustering.images'
  ):
    check(Participants(clients, 7, 3))


def test_unknown_representation():
  with pytest.raises(errors.ConfigError, match='client_clustering.represent'):
    client_clustering.make(client_clustering.Options(represent='median'))


def test_what_needs_one_model_is_refused():
  with pytest.raises(
    errors.ConfigError, match="'kd' cannot be composed with 'client_clustering'"
  ):
    handmade.algorithm((FEDPAV, client_clustering.make(), kd.make()))


def test_two_groupings_are_refused():
  def alone(groups, ctx):
    return ctx.index

  other = Component('alone', clustering=alone)
  with pytest.raises(
    errors.ConfigError, match="'client_clustering' and 'alone'"
  ):
    handmade.algorithm((FEDPAV, client_clustering.make(), other))


def test_both_views_of_the_planted_pairs():
  """The example is what it says: cosines worked out directly."""
  rows = PLANTED[:, :2].reshape(4, 4)
  means = PLANTED[:, :2].mean(axis=1)
  stale = PLANTED[:, :2] - MEANS[:, None]
  views = [(rows, [1, 0, 3, 2]), (means, [2, 3, 0, 1])]
  views += [(stale.reshape(4, 4), [3, 2, 1, 0])]
  views += [(stale.mean(axis=1), [3, 2, 1, 0])]
  for vectors, partner in views:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T - 2 * np.eye(4)
    assert cosines.argmax(axis=1).tolist() == partner


def test_a_new_group_moves_from_what_its_members_started_from():
  """Not from the old model of the number the group is given."""

  def cluster(groups, ctx):
    return jnp.where(ctx.round == 0, 0, 1) + 0 * ctx.index

  def half(messages, ctx):
    return 0.5 * aggregation.normalise(ctx.num_examples, ctx.members)

  start = handmade.variables(0.0)
  rounds = [
    handmade.same_uploads(
      {n: jnp.full_like(start[n], value) for n in (KERNEL, MEAN)}, 2
    )
    for value in (8.0, 2.0)
  ]
  server, _ = handmade.serve(
    (
      FEDPAV,
      Component('moving', clustering=cluster),
      Component('half', aggregation=Gather(half)),
    ),
    start,
    *rounds,
  )
  # Round 0: half way from 0 to 8. Round 1, as group 1: half way from 4 to 2.
  np.testing.assert_allclose(server.shared[KERNEL][1], 3.0)
  assert server.groups.tolist() == [1, 1]


clusters_of = jax.jit(client_clustering.first_neighbour_clusters)


def first_members(labels):
  """Names every cluster by its lowest row."""
  return np.array([np.flatnonzero(labels == label)[0] for label in labels])


def by_adjacency(features):
  """Components of the paper's eq. 1, worked out in float64."""
  features = np.asarray(features, 'f8')
  unit = features / np.linalg.norm(features, axis=1, keepdims=True)
  distance = 1 - unit @ unit.T
  np.fill_diagonal(distance, np.inf)
  nearest = distance.argmin(axis=1)
  row = np.arange(len(features))
  linked = (
    (nearest[:, None] == row)
    | (row[:, None] == nearest)
    | (nearest[:, None] == nearest)
  )
  return first_members(csgraph.connected_components(linked)[1])


@pytest.mark.parametrize('num', range(2, 13))
def test_five_hundred_random_cases(num):
  rng = np.random.default_rng(num)
  cases = rng.standard_normal((46, num, 8)).astype('f4')
  found = np.asarray(jax.jit(jax.vmap(clusters_of))(cases))
  assert found.dtype == np.int32
  for features, labels in zip(cases, found, strict=True):
    np.testing.assert_array_equal(labels, by_adjacency(features))
    assert np.unique(labels, return_counts=True)[1].min() >= 2


def test_length_of_a_row_does_not_matter():
  rng = np.random.default_rng(0)
  features = rng.standard_normal((9, 8))
  scaled = features * 10.0 ** rng.integers(-4, 5, (9, 1))
  found = clusters_of(jnp.asarray(scaled))
  np.testing.assert_array_equal(found, by_adjacency(features))


def test_a_chain_of_nearest_neighbours_is_one_cluster():
  """Every row's nearest is the one before: the longest path there is."""
  angles = np.cumsum(0.9 ** np.arange(12))[::-1] * 0.2
  rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
  nearest = by_adjacency(rows)
  assert not nearest.any()
  assert not clusters_of(rows).any()


def test_planted_pairs_and_a_single_row():
  rows = jnp.array([[1, 0], [0, 1], [1, 0.1], [0.1, 1]])
  assert clusters_of(rows).tolist() == [
    0,
    1,
    0,
    1,
  ]
  assert clusters_of(rows[:1]).tolist() == [0]


def test_equal_rows_are_one_cluster():
  assert not clusters_of(jnp.ones((7, 3))).any()


@pytest.mark.parametrize('wrong', [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_alone(wrong):
  rows = jnp.array([[1, 0], [0, 1], [wrong, 1], [1, 0.1], [0.1, 1]])
  found = clusters_of(rows)
  assert found.tolist() == [0, 1, 2, 0, 1]


def test_rows_that_are_not_valid_are_alone_whatever_they_hold():
  """Even nan; the others are clustered as if they were not there."""
  rng = np.random.default_rng(1)
  for _ in range(20):
    features = rng.standard_normal((8, 4)).astype('f4')
    valid = rng.random(8) < 0.6
    features[~valid] = rng.choice([np.nan, np.inf, 0.0, 1.0], (8, 4))[~valid]
    run = functools.partial(
      jax.jit(client_clustering.first_neighbour_clusters), features
    )
    found, kept = np.asarray(run(valid)), np.flatnonzero(valid)
    assert (found[~valid] == np.flatnonzero(~valid)).all()
    if len(kept) > 1:
      np.testing.assert_array_equal(
        found[kept], kept[by_adjacency(features[kept])]
      )
