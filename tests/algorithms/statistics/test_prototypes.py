import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.algorithms import dppt
from fedreid_jax.algorithms.statistics import prototypes
from fedreid_jax.method.contexts import ReceiveCtx

CLASSES = 6


def batches(seed=0, steps=5, size=8, features=3):
  """Batches of identities 0 to 4, the fifth with a single image."""
  rng = np.random.default_rng(seed)
  labels = rng.integers(0, 4, (steps, size))
  labels[2, 3] = 4
  valid = rng.random((steps, size)) < 0.8
  valid[2, 3] = True
  return rng.standard_normal((steps, size, features)), labels, valid


def lists(steps):
  """A list of features for each identity, in order."""
  kept: dict[int, list] = {}
  for features, labels, valid in zip(*steps, strict=True):
    for z, label, real in zip(features, labels, valid, strict=True):
      if real:
        kept.setdefault(int(label), []).append(z)
  return kept


def nearest_mean(members, k):
  members = np.array(members)
  mean = members.mean(axis=0)
  if len(members) < k:
    return mean
  away = np.linalg.norm(members - mean, axis=1)
  return members[np.argsort(away, kind='stable')[:k]].mean(axis=0)


@functools.partial(jax.jit, static_argnames='capacity')
def remember(steps, capacity=64):
  """Inserts batch after batch inside a compiled loop."""

  def step(held, batch):
    return prototypes.insert(held, *batch), None

  held = prototypes.empty(capacity, steps[0].shape[-1])
  return jax.lax.scan(step, held, steps)[0]


centres_of = jax.jit(prototypes.nearest_means, static_argnums=1)


@pytest.mark.parametrize('k', [1, 2, 4, 1000])
def test_centres_are_those_of_lists_by_identity(k):
  steps = batches()
  found = centres_of(remember(steps), CLASSES, k)
  kept = lists(steps)
  assert found.present.tolist() == [c in kept for c in range(CLASSES)]
  for label in range(CLASSES):
    expected = nearest_mean(kept[label], k) if label in kept else np.zeros(3)
    np.testing.assert_allclose(
      found.features[label], expected, rtol=1e-5, atol=1e-6
    )


def test_a_large_k_gives_the_plain_centre():
  steps = batches(1)
  found = centres_of(remember(steps), CLASSES, 10**6)
  for label, members in lists(steps).items():
    np.testing.assert_allclose(
      found.features[label], np.mean(members, axis=0), rtol=1e-5, atol=1e-6
    )


def test_worked_number():
  """Of 0, 1, 2 and 9 with mean 3 the two nearest are 2 and 1."""
  line = jnp.array([[0.0], [1.0], [2.0], [9.0]])
  held = prototypes.insert(
    prototypes.empty(4, 1), line, jnp.zeros(4, jnp.int32), jnp.ones(4, bool)
  )
  assert centres_of(held, 1, 2).features == 1.5


def test_padded_rows_take_no_room():
  features, labels, valid = batches(steps=3, size=4)
  valid[:] = [True, False, True, False]
  valid[2] = False
  labels[:] = 1
  held = remember((features, labels, valid), capacity=4)
  assert held.num == 4 and held.labels.tolist() == [1] * 4
  np.testing.assert_allclose(
    held.features, features[:2, ::2].reshape(4, 3), rtol=1e-6
  )


def test_what_finds_no_room_is_not_kept():
  features, labels, valid = batches(steps=3, size=4)
  valid[:] = True
  held = remember((features, labels, valid), capacity=6)
  np.testing.assert_allclose(
    held.features, features.reshape(12, 3)[:6], rtol=1e-6
  )
  assert held.num == 12 and held.labels.tolist() == labels.ravel()[:6].tolist()


def test_an_empty_memory_has_no_prototypes():
  found = centres_of(prototypes.empty(5, 2), CLASSES, 4)
  assert not found.present.any() and not found.features.any()


def centres(*rows):
  """Centres of one feature; None where there is none."""
  present = jnp.array([x is not None for x in rows])
  return prototypes.Prototypes(jnp.array([[x or 0.0] for x in rows]), present)


def stacked(*clients):
  return jax.tree.map(lambda *x: jnp.stack(x), *clients)


def merge(old, uploads, arrived, absent='skip'):
  """The server's centres after stacked uploads, of which some arrived."""
  receive = dppt.make(dppt.Options(absent=absent)).server.receive
  return receive(old, uploads, arrived, ReceiveCtx(jnp.arange(len(arrived))))


def test_the_server_averages_over_clients_that_have_an_identity():
  uploads = stacked(centres(1.0, 2.0, None), centres(3.0, None, None))
  found = merge(prototypes.no_prototypes(3, 1), uploads, jnp.array([True] * 2))
  assert found.features.ravel().tolist() == [2.0, 2.0, 0.0]
  assert found.present.tolist() == [True, True, False]


def test_absent_identities_may_count_as_zeros():
  """Of three uploads two arrived: a sum is halved, whoever lacks a centre."""
  uploads = stacked(
    centres(1.0, 2.0, None), centres(3.0, None, None), centres(9.0, 9.0, 9.0)
  )
  arrived = jnp.array([True, True, False])
  found = merge(centres(7.0, None, 8.0), uploads, arrived, 'zeros')
  assert found.features.ravel().tolist() == [2.0, 1.0, 8.0]
  assert found.present.tolist() == [True, True, True]


def test_only_uploads_that_arrived_count_and_old_centres_stay():
  uploads = stacked(
    centres(1.0, 2.0, None, None), centres(jnp.nan, 5.0, 6.0, None)
  )
  old = centres(7.0, 8.0, 9.0, None)
  found = merge(old, uploads, jnp.array([True, False]))
  assert found.features.ravel().tolist() == [1.0, 2.0, 9.0, 0.0]
  assert found.present.tolist() == [True, True, True, False]
