"""Batches of every sampler."""

import random

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.data import sampling
from fedreid_jax.method import poisson


def settings(**changes):
  return sampling.Local(**{'batch': 4, 'identities': 2} | changes)


def both_modalities(client, infrared=3):
  """The same client, its first images infrared."""
  modalities = (np.arange(client.num_images) < infrared).astype(np.int32)
  return client._replace(modalities=modalities)


def test_an_epoch_shows_every_image_once_but_the_rest(clients):
  plan, shape, masked = sampling.make(settings(), clients, 0)
  assert shape == (3, 4) and not masked
  for k, client in enumerate(clients):
    rows, valid = plan(0, k)
    assert len(rows) == client.num_images // 4
    assert valid.all()
    assert len(set(rows.ravel())) == rows.size


def test_without_drop_last_every_image_once(clients):
  plan, shape, masked = sampling.make(settings(drop_last=False), clients, 0)
  assert shape == (4, 4) and masked
  for k, client in enumerate(clients):
    rows, valid = plan(0, k)
    assert sorted(rows[valid]) == list(range(client.num_images))


def test_a_client_smaller_than_a_batch_takes_one_padded_batch():
  clients = (toy.toy_client('one', 1), toy.toy_client('two', 6))
  plan, _, masked = sampling.make(settings(), clients, 0)
  assert masked
  rows, valid = plan(0, 0)
  assert valid.tolist() == [[True, False, False, False]]
  assert rows.tolist() == [[0, 0, 0, 0]]


def test_fixed_steps_start_again_when_images_run_out(clients):
  plan, shape, _ = sampling.make(settings(steps=10), clients, 0)
  assert shape == (10, 4)
  rows, valid = plan(0, 0)
  assert rows.shape == (10, 4) and valid.all()
  assert np.bincount(rows.ravel(), minlength=9).max() <= 10


@pytest.mark.parametrize('name', sampling.SAMPLERS)
def test_plans_differ_by_round_and_repeat_by_seed(clients, name):
  clients = tuple(both_modalities(client) for client in clients)
  config = settings(sampler=name, batch=6 if name == 'pk_caj' else 4)
  plan, _, _ = sampling.make(config, clients, 3)
  again, _, _ = sampling.make(config, clients[::-1], 3)
  np.testing.assert_array_equal(plan(2, 1).rows, again(2, 2).rows)
  assert (plan(2, 1).rows != plan(3, 1).rows).any()


def test_pk_draws_p_identities_and_k_images(clients):
  plan, _, masked = sampling.make(settings(sampler='pk'), clients, 0)
  assert not masked
  for k, client in enumerate(clients):
    for row in plan(1, k).rows:
      labels = client.labels[row].reshape(2, 2)
      assert (labels[:, 0] == labels[:, 1]).all()
      assert labels[0, 0] != labels[1, 0]


def test_pk_prefers_other_cameras(clients):
  plan, _, _ = sampling.make(settings(sampler='pk'), clients, 0)
  client = clients[1]
  for row in plan(1, 1).rows:
    for pair in row.reshape(2, 2):
      cameras = client.cameras[client.labels == client.labels[pair[0]]]
      if len(set(cameras)) > 1:
        assert client.cameras[pair[0]] != client.cameras[pair[1]]


def test_pk_shows_different_images_while_there_are_enough():
  client = toy.toy_client('plenty', 12, identities=3)
  client = client._replace(cameras=np.zeros(12, np.int32))
  for cross_camera in (True, False):
    plan, _, _ = sampling.make(
      settings(sampler='pk', batch=8, cross_camera=cross_camera), (client,), 0
    )
    for row in plan(0, 0).rows:
      assert len(set(row.tolist())) == 8


def test_pk_goes_through_all_identities_before_it_starts_anew():
  client = toy.toy_client('many', 24, identities=6)
  plan, _, _ = sampling.make(settings(sampler='pk', steps=3), (client,), 0)
  seen = client.labels[plan(0, 0).rows[:, ::2]].ravel()
  assert sorted(seen.tolist()) == list(range(6))


def test_padding_is_told_by_the_identities_present():
  client = toy.toy_client('shared', 8, identities=1)._replace(
    num_identities=395
  )
  assert sampling.make(settings(sampler='pk'), (client,), 0)[2]


def test_pk_with_too_few_identities_leaves_rows_padded():
  client = toy.toy_client('few', 8, identities=1)
  plan, _, masked = sampling.make(settings(sampler='pk'), (client,), 0)
  assert masked
  valid = plan(0, 0).valid
  assert valid[:, :2].all() and not valid[:, 2:].any()


def test_pk_replace_draws_identities_anew_and_images_again():
  client = toy.toy_client('many', 50, identities=5)
  config = settings(sampler='pk_replace', batch=12, identities=3, epochs=40)
  plan, shape, masked = sampling.make(config, (client,), 0)
  assert shape == (200, 12) and not masked  # 50 // 12 + 1 batches an epoch
  rows = plan(0, 0).rows.reshape(200, 3, 4)
  labels = client.labels[rows]
  assert (labels == labels[..., :1]).all()
  assert all(len(set(batch)) == 3 for batch in labels[..., 0])
  # Uniform over identities, over images, and with replacement: of ten images
  # four differ with probability 0.504.
  np.testing.assert_allclose(
    np.bincount(labels[..., 0].ravel()) / 600, 0.2, atol=0.04
  )
  assert np.bincount(rows.ravel(), minlength=50).min() > 20
  differ = [len(set(four)) == 4 for four in rows.reshape(600, 4).tolist()]
  assert abs(np.mean(differ) - 0.504) < 0.07


def test_pk_replace_with_too_few_identities_leaves_rows_padded():
  client = toy.toy_client('few', 8, identities=1)
  plan, _, masked = sampling.make(settings(sampler='pk_replace'), (client,), 0)
  assert masked
  valid = plan(0, 0).valid
  assert valid[:, :2].all() and not valid[:, 2:].any()


def uneven(sizes, name='uneven'):
  """A client whose identities have so many images."""
  labels = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
  labels = np.random.default_rng(0).permutation(labels)
  client = toy.toy_client(name, len(labels), identities=len(sizes))
  return client._replace(labels=labels)


def random_identity_sampler(labels, batch, num_instances):
  """One epoch as torchreid's documentation and code describe it, in Python."""
  shown = {}
  for index, person in enumerate(labels):
    shown.setdefault(person, []).append(index)
  lists = {}
  for person, own in shown.items():
    if len(own) < num_instances:
      own = random.choices(own, k=num_instances)
    random.shuffle(own)
    whole = len(own) - len(own) % num_instances
    lists[person] = [
      own[k : k + num_instances] for k in range(0, whole, num_instances)
    ]
  batches, available = [], list(lists)
  while len(available) >= batch // num_instances:
    rows = []
    for person in random.sample(available, batch // num_instances):
      rows += lists[person].pop(0)
      if not lists[person]:
        available.remove(person)
    batches.append(rows)
  return batches


def test_pk_torchreid_ends_an_epoch_when_fewer_than_p_have_images_left():
  client = uneven([1, 2, 3, 4, 7, 9, 12, 30])
  config = settings(sampler='pk_torchreid', batch=9, identities=3)
  plan, (longest, _), masked = sampling.make(config, (client,), 0)
  assert not masked
  # 1, 1, 1, 1, 2, 3, 4 and 10 groups of three.
  assert longest == 23 // 3
  for round_ in range(50):
    groups = {
      k: max(n // 3, 1) for k, n in enumerate([1, 2, 3, 4, 7, 9, 12, 30])
    }
    rows = plan(round_, 0).rows
    for row in rows:
      labels = client.labels[row].reshape(3, 3)
      assert (labels == labels[:, :1]).all()
      assert len(set(labels[:, 0])) == 3
      assert sum(n > 0 for n in groups.values()) >= 3
      for label in labels[:, 0]:
        groups[label] -= 1
    assert min(groups.values()) >= 0
    assert sum(n > 0 for n in groups.values()) < 3
    times = np.bincount(rows.ravel(), minlength=client.num_images)
    assert times[client.labels >= 2].max() == 1


def test_pk_torchreid_is_distributed_as_the_original():
  sizes = [1, 2, 3, 4, 7, 9, 12, 30, 5, 5, 8, 16]
  client = uneven(sizes)
  config = settings(sampler='pk_torchreid', batch=16, identities=4)
  plan, _, _ = sampling.make(config, (client,), 0)
  random.seed(0)
  ours, theirs = np.zeros((2, 1000, client.num_images))
  for epoch in range(1000):
    rows = plan(epoch, 0).rows
    np.add.at(ours[epoch], rows.ravel(), 1)
    for row in random_identity_sampler(client.labels.tolist(), 16, 4):
      np.add.at(theirs[epoch], row, 1)
  # Batches of an epoch, then how often each identity's images are shown.
  for one, two in (
    (ours.sum(1), theirs.sum(1)),
    *(
      (ours[:, client.labels == k].sum(1), theirs[:, client.labels == k].sum(1))
      for k in range(len(sizes))
    ),
  ):
    error = np.hypot(one.std(), two.std()) / np.sqrt(1000)
    assert abs(one.mean() - two.mean()) <= 4.5 * error
  assert 0.5 < (ours > 0).mean() < 0.9


def test_pk_torchreid_draws_epochs_for_fixed_steps():
  client = uneven([4, 4, 4])
  config = settings(sampler='pk_torchreid', batch=8, identities=2)
  rows = sampling.make(config, (client,), 0)[0](0, 0).rows
  assert len(rows) == 1  # of three groups a batch takes two
  for steps in (1, 5):
    config = settings(
      sampler='pk_torchreid', batch=8, identities=2, steps=steps
    )
    plan, shape, _ = sampling.make(config, (client,), 0)
    assert shape == (steps, 8) and plan(0, 0).rows.shape == (steps, 8)
  config = settings(sampler='pk_torchreid', batch=8, identities=2, epochs=3)
  assert len(sampling.make(config, (client,), 0)[0](0, 0).rows) == 3


def test_pk_torchreid_with_too_few_identities_leaves_rows_padded():
  client = uneven([5, 5])
  config = settings(sampler='pk_torchreid', batch=12, identities=6)
  plan, shape, masked = sampling.make(config, (client,), 0)
  assert masked and shape == (2, 12)
  rows, valid = plan(0, 0)
  assert rows.shape == (2, 12)
  assert valid[:, :4].all() and not valid[:, 4:].any()


@pytest.mark.parametrize(
  'name, batch, steps', [('pk_modality', 16, 5), ('pk_caj', 24, 5)]
)
def test_halves_have_the_same_identities_in_the_same_order(name, batch, steps):
  client = both_modalities(toy.toy_client('both', 48, identities=4), 12)
  config = settings(sampler=name, batch=batch, identities=2)
  plan, shape, masked = sampling.make(config, (client,), 0)
  # The larger modality has 36 images, a half 8: 36 // 8 + 1.
  assert shape == (steps, batch) and not masked
  for row in plan(0, 0).rows:
    parts = row.reshape(-1, 2, 4)
    labels, modalities = client.labels[parts], client.modalities[parts]
    assert (labels == labels[:1, :, :1]).all()
    assert labels[0, 0, 0] != labels[0, 1, 0]
    assert (modalities[:-1] == 0).all() and (modalities[-1] == 1).all()
    assert (parts[:-1] == parts[0]).all()


def test_identities_of_one_modality_are_never_drawn():
  client = toy.toy_client('both', 12, identities=3)
  modalities = (np.arange(12) < 5).astype(np.int32) * (client.labels > 0)
  client = client._replace(modalities=modalities)
  plan, _, masked = sampling.make(
    settings(sampler='pk_modality', batch=12, identities=3), (client,), 0
  )
  assert masked
  rows, valid = plan(0, 0)
  assert (
    valid.reshape(-1, 2, 3, 2)[0].tolist()
    == [[[True] * 2, [True] * 2, [False] * 2]] * 2
  )
  assert set(client.labels[rows[valid]]) == {1, 2}


@pytest.mark.parametrize('infrared', [0, 12])
def test_a_client_of_one_modality_is_refused(infrared):
  client = both_modalities(toy.toy_client('blind', 12), infrared)
  with pytest.raises(errors.DataError, match='client blind'):
    sampling.make(settings(sampler='pk_modality', steps=3), (client,), 0)


def test_parts_and_identities_divide_a_batch(clients):
  with pytest.raises(errors.ConfigError, match='multiple of 6'):
    sampling.make(settings(sampler='pk_caj'), clients, 0)


STEPS = 4000


def plan_of(sampler, client, batch, identities=2, steps=STEPS, seed=0):
  config = sampling.Local(
    sampler=sampler, batch=batch, identities=identities, steps=steps
  )
  plan, shape, masked = sampling.make(config, (client,), seed)
  assert masked and shape == (steps, 2 * batch)
  return plan(0, 0)


def included(client, plan, identities):
  """Whether each identity is in each step, bool `[S, J]`."""
  labels = np.where(plan.valid, client.labels[plan.rows], -1)
  return (labels[:, None] == np.arange(identities)[:, None]).any(axis=2)


def test_identities_are_drawn_independently_with_one_probability():
  client = toy.toy_client('one', 40, 10)
  plan = plan_of('poisson_pk', client, batch=4)
  found = included(client, plan, 10)
  rate, error = 0.2, 4 * np.sqrt(0.2 * 0.8 / STEPS)
  # Of ten identities more than four are drawn in 3 % of the steps.
  full = found.sum(axis=1) == 4
  assert 0.08 < full.mean() < 0.15
  inside = 0.2 - np.mean(found)
  assert 0 < inside < 0.01
  np.testing.assert_allclose(found.mean(axis=0), found.mean(), atol=error)
  pairs = np.cov(found, rowvar=False) / (rate * (1 - rate))
  others = pairs[~np.eye(10, dtype=bool)]
  assert np.abs(others).max() < 5 / np.sqrt(STEPS)
  steps = np.corrcoef(found[1:, 0], found[:-1, 0])[0, 1]
  assert abs(steps) < 4 / np.sqrt(STEPS)
  assert (found.sum(axis=1) == 0).mean() == pytest.approx(0.8**10, abs=0.02)


def test_without_a_limit_the_probability_is_exact():
  client = toy.toy_client('one', 16, 4)  # four places, four identities
  found = included(client, plan_of('poisson_pk', client, batch=4), 4)
  error = 4 * np.sqrt(0.25 / STEPS)
  np.testing.assert_allclose(found.mean(axis=0), 0.5, atol=error)
  assert np.abs(np.corrcoef(found, rowvar=False) - np.eye(4)).max() < 0.07


def test_those_without_a_place_are_random(monkeypatch):
  """Five of ten identities are drawn on average, for ten places and five."""
  client = toy.toy_client('one', 40, 10)
  rng = np.random.default_rng(0)
  pools = [np.flatnonzero(client.labels == j) for j in range(10)]
  plan = sampling._poisson_plan(rng, pools, STEPS, 5, 1)
  found = included(client, plan, 10)
  assert found.sum(axis=1).max() == 10
  monkeypatch.setattr(poisson, 'PLACES', 1)
  plan = sampling._poisson_plan(rng, pools, STEPS, 5, 1)
  found = included(client, plan, 10)
  assert found.sum(axis=1).max() == 5
  error = 4 * np.sqrt(0.25 / STEPS)
  np.testing.assert_allclose(found.mean(axis=0), found.mean(), atol=error)


def test_an_identity_has_k_images_that_differ_and_stands_first():
  client = toy.toy_client('one', 40, 10)
  plan = plan_of('poisson_pk', client, batch=6, steps=200)
  rows = np.where(plan.valid, plan.rows, -1).reshape(200, 4, 3)
  used = plan.valid.reshape(200, 4, 3)
  assert (used.all(axis=2) == used.any(axis=2)).all()
  count = used[..., 0].sum(axis=1)
  assert (used[..., 0] == (np.arange(4) < count[:, None])).all()
  for one in rows[used[..., 0]]:
    assert len({*one}) == 3 and len({*client.labels[one]}) == 1
  few = toy.toy_client('few', 8, 4)  # two images of each
  plan = plan_of('poisson_pk', few, batch=6, steps=20)
  assert plan.valid.any()


def test_images_are_drawn_independently():
  client = toy.toy_client('one', 20, 4)
  plan = plan_of('poisson', client, batch=5)
  counts = np.bincount(plan.rows[plan.valid], minlength=20) / STEPS
  np.testing.assert_allclose(counts, 0.25, atol=0.03)
  assert len({*plan.valid.sum(axis=1)}) > 4
