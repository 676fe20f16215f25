import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import cross_modal


def test_worked_numbers():
  """Two images of two positions, margin 0.3.

  Hinges: [2 - 1 + 0.3, 0] and [0.3, 1 - 0.5 + 0.3]; weighed by the co-masks
  [1, 1] and [0, 0.5]: 1.3, 0, 0, 0.4. Mean 0.425.
  """
  loss = dense_triplet(
    jnp.array([[1.0, 1], [0, 0.5]]),
    jnp.array([[2.0, 1], [0, 1]]),
    jnp.array([[1.0, 4], [0, 0.5]]),
    jnp.ones(2, bool),
  )
  np.testing.assert_allclose(loss, 0.425, rtol=1e-6)


def arrays(seed=0):
  rng = np.random.default_rng(seed)
  return [jnp.asarray(rng.uniform(size=(4, 6)), jnp.float32) for _ in range(3)]


@pytest.mark.gives_nan
def test_images_that_do_not_count_change_nothing():
  comask, positive, negative = arrays()
  valid = jnp.array([True, False, True, False])
  found = dense_triplet(
    comask,
    np.where(np.arange(4)[:, None] == 1, np.nan, positive),
    negative,
    valid,
  )
  kept = jnp.array([0, 2])
  alone = dense_triplet(
    comask[kept], positive[kept], negative[kept], jnp.ones(2, bool)
  )
  np.testing.assert_allclose(found, alone, rtol=1e-6)


def test_no_image_counts():
  comask, positive, negative = arrays()
  loss, grad = compiled.value_and_grad(
    lambda p: dense_triplet(comask, p, negative, jnp.zeros(4, bool))
  )(positive)
  assert loss == 0
  np.testing.assert_array_equal(grad, np.zeros_like(positive))


def test_images_are_not_mixed():
  """An image's co-mask weighs its own hinges: the gradient shows which."""
  _, positive, negative = arrays()
  comask = jnp.zeros((4, 6)).at[2, 3].set(1.0)
  grad = compiled.grad(
    lambda p: dense_triplet(comask, p, negative, jnp.ones(4, bool), 5.0)
  )(positive)
  expected = np.zeros((4, 6))
  expected[2, 3] = 1 / 24
  np.testing.assert_allclose(grad, expected, rtol=1e-6)


# Compiled whole: one operation after another takes longer to compile.
dense_triplet = jax.jit(cross_modal.dense_triplet)
orthogonality = jax.jit(cross_modal.orthogonality)
statistic = jax.jit(jax.value_and_grad(cross_modal.mmd))
alignment = jax.jit(cross_modal.alignment)
distillation = jax.jit(jax.value_and_grad(cross_modal.distillation, (0, 1)))


def vectors(num, seed, dim=6):
  return np.random.default_rng(seed).normal(size=(num, dim))


def squared(x, y):
  return np.square(x[:, None] - y[None]).sum(axis=2)


def bandwidth(x, y):
  both = np.concatenate([x, y])
  n = len(both)
  return squared(both, both).sum() / (n * (n - 1)) / 4


def mmd(x, y, width=None):
  """The statistic, three means over all pairs."""
  width = width or bandwidth(x, y)

  def kernel(a, b):
    d = squared(a, b) / width
    return (
      np.exp(-d)
      + np.exp(-d / 2)
      + np.exp(-d / 4)
      + np.exp(-d / 8)
      + np.exp(-d / 16)
    ).mean()

  return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


def unit(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def real(num):
  return jnp.ones(num, bool)


def test_mmd_of_two_points_worked_by_hand():
  """Distance 2, width (2 * 4 / 2) / 4 = 1: 10 - 2 sum exp(-4 / 2^i)."""
  found, _ = statistic(jnp.array([[0.0]]), jnp.array([[2.0]]), real(1), real(1))
  expected = 10 - 2 * (0.018316 + 0.135335 + 0.367879 + 0.606531 + 0.778801)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_mmd_equals_numpy_for_sets_of_different_size():
  x, y = vectors(5, 0), 1 + vectors(3, 1)
  found, _ = statistic(jnp.asarray(x), jnp.asarray(y), real(5), real(3))
  np.testing.assert_allclose(found, mmd(x, y), rtol=1e-5)


def test_mmd_of_the_same_samples_is_zero():
  x = jnp.asarray(vectors(5, 0))
  assert abs(statistic(x, x, real(5), real(5))[0]) < 1e-6


def test_rows_out_of_both_sets_change_nothing():
  x, y = vectors(5, 0), vectors(4, 1)
  in_x, in_y = np.arange(5) < 3, np.arange(4) > 0
  value, grad = statistic(
    jnp.asarray(x), jnp.asarray(y), jnp.asarray(in_x), jnp.asarray(in_y)
  )
  np.testing.assert_allclose(value, mmd(x[in_x], y[in_y]), rtol=1e-5)
  np.testing.assert_array_equal(grad[~in_x], np.zeros((2, 6)))


def test_no_gradient_passes_through_the_bandwidth():
  x, y = vectors(3, 0, 2), vectors(3, 1, 2)
  width, step = bandwidth(x, y), 1e-5
  _, grad = statistic(jnp.asarray(x), jnp.asarray(y), real(3), real(3))
  for at in np.ndindex(x.shape):
    move = np.zeros_like(x)
    move[at] = step
    change = mmd(x + move, y, width) - mmd(x - move, y, width)
    np.testing.assert_allclose(grad[at], change / (2 * step), atol=1e-5)


@pytest.mark.parametrize('in_x, in_y', [(3, 0), (0, 3), (0, 0)])
def test_an_empty_set_is_zero_without_nan(in_x, in_y):
  x, count = jnp.asarray(vectors(3, 0)), jnp.arange(3)
  value, grad = statistic(x, x + 1, count < in_x, count < in_y)
  assert value == 0
  np.testing.assert_array_equal(grad, np.zeros_like(x))


def test_differences_are_not_rounded_to_short_floats():
  x, mask = jnp.ones((4, 6)), jnp.arange(4) < 2
  program = str(jax.make_jaxpr(cross_modal.mmd)(x, x, mask, ~mask))
  products = program.count('dot_general')
  assert products and program.count('Precision.HIGHEST') == 2 * products


def test_collapsed_features_are_near_zero_and_finite():
  x = jnp.full((4, 8), 0.125**0.5)
  value, grad = statistic(x, x, real(4), real(4))
  assert abs(value) < 1e-6
  assert np.isfinite(grad).all()


def domains():
  """Two domains of three and two images, and a row of neither."""
  members = np.array([[1, 0, 1, 0, 1, 0], [0, 1, 0, 0, 0, 1]], bool)
  return 3 * vectors(6, 0), vectors(6, 1), members


def test_alignment_of_two_domains():
  z, shifted, (v, r) = domains()
  a, b = unit(z), unit(shifted)
  expected = 0.45 * (mmd(a[v], a[r]) + mmd(b[v], b[r]))
  expected += 0.05 * (mmd(a[v], b[v]) + mmd(a[r], b[r]))
  found = alignment(jnp.asarray(z), jnp.asarray(shifted), jnp.asarray([v, r]))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize('empty', [False, True])
def test_alignment_of_one_domain_has_no_term_between_domains(empty):
  """One domain of one, or of two the other of which is not in the batch."""
  z, shifted, (v, _) = domains()
  members = np.stack([v, np.zeros_like(v)]) if empty else v[None]
  found = alignment(jnp.asarray(z), jnp.asarray(shifted), jnp.asarray(members))
  expected = 0.05 * mmd(unit(z)[v], unit(shifted)[v])
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_distillation_worked_numbers():
  """Softmax (1/4, 3/4) is taught (1/2, 1/2), and (1/2, 1/2) is taught itself.

  KL = 1/4 ln 1/2 + 3/4 ln 3/2 = 0.130812, and 0. The first image is all of its
  domain, -ln 3/4 = 0.287682; so is the second, ln 2 = 0.693147.
  """
  logits = jnp.array([[0.0, np.log(3.0)], [1.0, 1.0], [9.0, 0.0]])
  targets = jnp.array([[2.0, 2.0], [0.0, 0.0], [0.0, 9.0]])
  labels = jnp.array([1, 0, 1])
  members = jnp.array([[True, False, False], [False, True, False]])
  expected = 0.130812 / 2 + 0.25 * (0.287682 + 0.693147)
  found, grads = distillation(logits, targets, labels, members)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  np.testing.assert_array_equal(grads[1], np.zeros_like(targets))
  np.testing.assert_array_equal(grads[0][2], np.zeros(2))
  # Without the second image's domain its terms are gone.
  found, _ = distillation(logits, targets, labels, members[:1])
  np.testing.assert_allclose(found, 0.130812 + 0.25 * 0.287682, rtol=1e-5)


def test_distillation_over_padded_identities_is_finite():
  logits = jnp.array([[0.0, np.log(3.0), -1e9]])
  everybody = jnp.ones((1, 1), bool)
  found, (grad, _) = distillation(
    logits, jnp.array([[0.0, 0.0, -1e9]]), jnp.array([1]), everybody
  )
  np.testing.assert_allclose(found, 0.130812 + 0.25 * 0.287682, rtol=1e-5)
  assert np.isfinite(grad).all() and grad[0, 2] == 0


def test_no_image_at_all_is_zero():
  nobody = jnp.zeros((2, 3), bool)
  x, labels = jnp.asarray(vectors(3, 0)), jnp.zeros(3, jnp.int32)
  assert distillation(x, x, labels, nobody)[0] == 0
  assert alignment(x, x, nobody) == 0


MINING = jax.jit(cross_modal.centre_pair_mining)


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
  loss, grad = compiled.value_and_grad(
    lambda f: mining(f, branch, labels, alone)
  )(jnp.asarray(original))
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
  grad = compiled.grad(
    lambda b: mining(original, b, labels, modalities, margin=9)
  )(jnp.array([[0.0, 1], [0, 1]], jnp.float32))
  # Half of the unit vectors from r = (3, 4) to v' and from v = (0, 0) to r'.
  away = np.array([-3, -3]) / np.linalg.norm([3, 3])
  np.testing.assert_allclose(grad, [away / 2, [0, 0.5]], atol=1e-6)


def test_gradients_are_finite_where_all_features_are_equal():
  _, labels, modalities = batch()
  same = jnp.ones((len(labels), 3))
  grads = compiled.grad(
    lambda f, b: mining(f, b, labels, modalities), argnums=(0, 1)
  )(same, same)
  assert np.isfinite(grads).all()


def test_orthogonality_is_the_mean_product_over_three():
  first = jnp.array([[1.0, 2], [3, 4], [9, 9]])
  second = jnp.array([[5.0, 6], [7, 8], [9, 9]])
  valid = jnp.array([True, True, False])
  loss = orthogonality(first, second, valid)
  np.testing.assert_allclose(loss, (17 + 53) / 2 / 3, rtol=1e-6)
