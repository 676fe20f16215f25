import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.apps.audit import gradient as gradient_audit
from fedreid_jax.apps.audit import gradient_search as search_lib
from fedreid_jax.apps.audit.gradient_search import Search

SHAPE = (1, 4, 3, 1)


def linear(x, labels):
  """A gradient that has the pixels themselves, in one direction per label."""
  return {'w': jnp.outer(x.reshape(-1) - 0.5, jnp.eye(3)[labels[0]])}


def picture(seed=0):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.uniform(0, 1, SHAPE), jnp.float32)


def test_a_linear_gradient_gives_the_direction_of_the_image():
  attack = search_lib.make(linear, SHAPE, Search(200, 1, variation=0.0))
  labels = jnp.asarray([1])
  found, value = attack(linear(picture(), labels), labels, 0)
  assert value < 1e-3 and found.min() >= 0 and found.max() <= 1
  one, other = np.ravel(found) - 0.5, np.ravel(picture()) - 0.5
  assert np.corrcoef(one, other)[0, 1] > 0.99
  wrong, value = attack(linear(picture(), labels), jnp.asarray([2]), 0)
  assert value == pytest.approx(1.0)


def test_cosine_is_over_all_parameters():
  one = {'a': jnp.asarray([3.0, 0.0]), 'b': jnp.asarray([4.0])}
  other = {'a': jnp.asarray([1.0, 2.0]), 'b': jnp.asarray([2.0])}
  assert search_lib.cosine(one, other) == pytest.approx(11 / 15)
  nothing = jax.tree.map(jnp.zeros_like, one)
  assert search_lib.cosine(one, nothing) == 0


def test_variation_by_hand():
  x = jnp.asarray([[1.0, 2.0], [4.0, 9.0]]).reshape(1, 2, 2, 1)
  assert search_lib.variation(x) == pytest.approx((3 + 7) / 2 + (1 + 5) / 2)


def test_a_random_gradient_has_the_norms_and_another_direction():
  one = {'a': jnp.arange(400.0), 'b': jnp.ones((20, 30))}
  other = search_lib.random_like(one, 0)
  for name, part in one.items():
    np.testing.assert_allclose(
      jnp.linalg.norm(other[name]), jnp.linalg.norm(part), rtol=1e-5
    )
  assert abs(search_lib.cosine(one, other)) < 0.2


def test_gain_above_grey():
  image = np.full((2, 2, 1), 0.9)
  assert gradient_audit.gain(image, np.full((2, 2, 1), 0.5)) == 0
  assert gradient_audit.gain(image, np.full((2, 2, 1), 0.86)) == pytest.approx(
    20
  )
  assert gradient_audit.gain(image, np.full((2, 2, 1), 0.1)) < 0


@pytest.mark.slow
def test_the_network_of_the_positive_control_can_be_inverted(monkeypatch):
  monkeypatch.setattr(gradient_audit, 'SIZE', (16, 8))
  rng = np.random.default_rng(0)
  rough = jnp.asarray(rng.uniform(0, 1, (1, 4, 2, 3)), jnp.float32)
  image = jax.image.resize(rough, (1, 16, 8, 3), 'linear')
  found = gradient_audit.attack_sigmoids(image, Search(250, 1))
  assert gradient_audit.gain(found[0], found[1]) > gradient_audit.GAIN
