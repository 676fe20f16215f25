import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import embedding_expansion

MINING = jax.jit(embedding_expansion.centre_pair_mining)


def batch(seed=0, dim=5):
  """Three identities, unequal numbers of images of either modality."""
  rng = np.random.default_rng(seed)
  labels = np.array([4, 4, 4, 1, 1, 1, 1, 7, 7])
  modalities = np.array([0, 0, 1, 0, 1, 1, 1, 1, 0])
  features = rng.normal(size=(2, len(labels), dim)).astype(np.float32)
  return features, labels, modalities


def by_hand(original, branch, labels, modalities, margin):
  """The loss with a loop over identities, as the equation reads."""
  names = [
    k
    for k in np.unique(labels)
    if {0, 1} <= set(modalities[labels == k].tolist())
  ]

  def centres(features, modality):
    rows = [(labels == k) & (modalities == modality) for k in names]
    return np.array([features[r].mean(axis=0) for r in rows])

  total = 0.0
  for modality in (0, 1):
    x, y = centres(original, 1 - modality), centres(original, modality)
    generated = centres(branch, modality)
    for i in range(len(names)):
      across = np.linalg.norm(x[i] - generated[i])
      within = np.linalg.norm(y[i] - generated[i])
      hinges = [max(across - within + margin, 0)]
      for c in (generated, y):
        others = np.delete(np.linalg.norm(c - c[i], axis=1), i)
        nearest = others.min(initial=np.inf)
        hinges.append(max(across - nearest + margin, 0) / 2)
      total += sum(hinges) / len(names)
  return total / 2


def mining(original, branch, labels, modalities, valid=None, margin=0.2):
  valid = np.ones(len(labels), bool) if valid is None else valid
  arrays = (original, branch, labels, modalities, valid)
  return MINING(*(jnp.asarray(a) for a in arrays), margin)


def test_mining_worked_numbers():
  """Two identities on a line, margin 0.2.

  Id 0: v=0, r=1, v'=0.5, r'=3; id 1: v=10, r=11, v'=10.5, r'=10.
  l(r, v; v'): id 0: across 0.5, within 0.5 -> 0.2; the others are 10 away;
  id 1: across 0.5, within 0.5 -> 0.2. Mean 0.2.
  l(v, r; r'): id 0: across 3, within 2 -> 1.2; v' of the other 7 away; r 10;
  id 1: across 0, within 1 -> 0. Mean 0.6. Half the sum: 0.4.
  """
  labels, modalities = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
  original = np.array([[0.0], [1], [10], [11]], np.float32)
  branch = np.array([[0.5], [3], [10.5], [10]], np.float32)
  loss = mining(original, branch, labels, modalities)
  np.testing.assert_allclose(loss, 0.4, rtol=1e-5)


def test_mining_equals_a_loop_over_identities():
  for seed, margin in ((0, 0.2), (1, 0.0), (2, 5.0)):
    (original, branch), labels, modalities = batch(seed)
    expected = by_hand(original, branch, labels, modalities, margin)
    found = mining(original, branch, labels, modalities, margin=margin)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_identities_of_one_modality_do_not_enter():
  (original, branch), labels, modalities = batch()
  modalities = np.where(labels == 1, 0, modalities)
  found = mining(original, branch, labels, modalities)
  expected = by_hand(original, branch, labels, modalities, 0.2)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  two = labels != 1
  small = mining(original[:, :][two], branch[two], labels[two], modalities[two])
  np.testing.assert_allclose(found, small, rtol=1e-5)


@pytest.mark.gives_nan
def test_padding_and_order_change_nothing():
  (original, branch), labels, modalities = batch()
  expected = mining(original, branch, labels, modalities)
  order = np.random.default_rng(5).permutation(len(labels))
  shuffled = (a[order] for a in (original, branch, labels, modalities))
  np.testing.assert_allclose(mining(*shuffled), expected, rtol=1e-5)
  hole = np.full((2, original.shape[1]), np.nan, np.float32)
  padded = mining(
    np.concatenate([hole, original]),
    np.concatenate([hole, branch]),
    np.concatenate([[4, 9], labels]),
    np.concatenate([[0, 1], modalities]),
    np.arange(len(labels) + 2) >= 2,
  )
  np.testing.assert_allclose(padded, expected, rtol=1e-5)


def test_nothing_to_mine_is_zero_with_zero_gradient():
  (original, branch), labels, _ = batch()
  alone = np.zeros_like(labels)
  loss, grad = jax.value_and_grad(lambda f: mining(f, branch, labels, alone))(
    jnp.asarray(original)
  )
  assert loss == 0
  np.testing.assert_array_equal(grad, np.zeros_like(original))


def test_one_identity_has_no_other_centre():
  (original, branch), labels, modalities = batch()
  rows = labels == 4
  arrays = original[rows], branch[rows], labels[rows], modalities[rows]
  np.testing.assert_allclose(mining(*arrays), by_hand(*arrays, 0.2), rtol=1e-5)


def test_pushing_an_expansion_from_its_origin_has_no_gradient():
  """Of one identity only the pull `d(x, y')` is left to differentiate."""
  labels, modalities = np.array([0, 0]), np.array([0, 1])
  original = np.array([[0.0, 0], [3, 4]], np.float32)
  grad = jax.grad(lambda b: mining(original, b, labels, modalities, margin=9))(
    jnp.array([[0.0, 1], [0, 1]], jnp.float32)
  )
  # Half of the unit vectors from r = (3, 4) to v' and from v = (0, 0) to r'.
  away = np.array([-3, -3]) / np.linalg.norm([3, 3])
  np.testing.assert_allclose(grad, [away / 2, [0, 0.5]], atol=1e-6)


def test_gradients_are_finite_where_all_features_are_equal():
  _, labels, modalities = batch()
  same = jnp.ones((len(labels), 3))
  grads = jax.grad(
    lambda f, b: mining(f, b, labels, modalities), argnums=(0, 1)
  )(same, same)
  assert np.isfinite(grads).all()


def test_orthogonality_is_the_mean_product_over_three():
  first = jnp.array([[1.0, 2], [3, 4], [9, 9]])
  second = jnp.array([[5.0, 6], [7, 8], [9, 9]])
  valid = jnp.array([True, True, False])
  loss = embedding_expansion.orthogonality(first, second, valid)
  np.testing.assert_allclose(loss, (17 + 53) / 2 / 3, rtol=1e-6)
