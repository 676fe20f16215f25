import numpy as np
import pytest
import toy

from configs import common
from fedreid_jax.data import sampler


def settings(**changes):
  config = common.default().local
  config.update({'batch': 4, 'identities': 2} | changes)
  return config


def test_an_epoch_shows_every_image_once_but_the_rest(clients):
  plan, shape, masked = sampler.make(settings(), clients, 0)
  assert shape == (3, 4) and not masked
  for k, client in enumerate(clients):
    rows, valid = plan(0, k)
    assert len(rows) == client.num_images // 4
    assert valid.all()
    assert len(set(rows.ravel())) == rows.size


def test_without_drop_last_every_image_once(clients):
  plan, shape, masked = sampler.make(settings(drop_last=False), clients, 0)
  assert shape == (4, 4) and masked
  for k, client in enumerate(clients):
    rows, valid = plan(0, k)
    assert sorted(rows[valid]) == list(range(client.num_images))


def test_a_client_smaller_than_a_batch_takes_one_padded_batch():
  clients = (toy.toy_client('one', 1), toy.toy_client('two', 6))
  plan, _, masked = sampler.make(settings(), clients, 0)
  assert masked
  rows, valid = plan(0, 0)
  assert valid.tolist() == [[True, False, False, False]]
  assert rows.tolist() == [[0, 0, 0, 0]]


def test_fixed_steps_start_again_when_images_run_out(clients):
  plan, shape, _ = sampler.make(settings(steps=10), clients, 0)
  assert shape == (10, 4)
  rows, valid = plan(0, 0)
  assert rows.shape == (10, 4) and valid.all()
  assert np.bincount(rows.ravel(), minlength=9).max() <= 10


@pytest.mark.parametrize('name', sampler.SAMPLERS)
def test_plans_differ_by_round_and_repeat_by_seed(clients, name):
  plan, _, _ = sampler.make(settings(sampler=name), clients, 3)
  again, _, _ = sampler.make(settings(sampler=name), clients[::-1], 3)
  np.testing.assert_array_equal(plan(2, 1).rows, again(2, 2).rows)
  assert (plan(2, 1).rows != plan(3, 1).rows).any()


def test_pk_draws_p_identities_and_k_images(clients):
  plan, _, masked = sampler.make(settings(sampler='pk'), clients, 0)
  assert not masked
  for k, client in enumerate(clients):
    for row in plan(1, k).rows:
      labels = client.labels[row].reshape(2, 2)
      assert (labels[:, 0] == labels[:, 1]).all()
      assert labels[0, 0] != labels[1, 0]


def test_pk_prefers_other_cameras(clients):
  plan, _, _ = sampler.make(settings(sampler='pk'), clients, 0)
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
    plan, _, _ = sampler.make(
      settings(sampler='pk', batch=8, cross_camera=cross_camera), (client,), 0
    )
    for row in plan(0, 0).rows:
      assert len(set(row.tolist())) == 8


def test_pk_goes_through_all_identities_before_it_starts_anew():
  client = toy.toy_client('many', 24, identities=6)
  plan, _, _ = sampler.make(settings(sampler='pk', steps=3), (client,), 0)
  seen = client.labels[plan(0, 0).rows[:, ::2]].ravel()
  assert sorted(seen.tolist()) == list(range(6))


def test_padding_is_told_by_the_identities_present():
  client = toy.toy_client('shared', 8, identities=1)._replace(
    num_identities=395
  )
  assert sampler.make(settings(sampler='pk'), (client,), 0)[2]


def test_pk_with_too_few_identities_leaves_rows_padded():
  client = toy.toy_client('few', 8, identities=1)
  plan, _, masked = sampler.make(settings(sampler='pk'), (client,), 0)
  assert masked
  valid = plan(0, 0).valid
  assert valid[:, :2].all() and not valid[:, 2:].any()
