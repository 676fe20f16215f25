import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from scipy import special

from fedreid_jax import errors
from fedreid_jax.algorithms import caj
from fedreid_jax.config import recipes, validation
from fedreid_jax.core import types

PARTS = ('visible', 'copy', 'infrared')
VALID = np.array([True, True, False] * 3)


def scores(seed=0):
  """Scores of three images of each part for four identities and a padded one.

  The third image of each part is padding.
  """
  values = 2 * np.random.default_rng(seed).standard_normal((9, 5))
  values[:, 4] = -1e9
  return jnp.asarray(values, jnp.float32)


def loss(logits, valid=VALID, **options):
  """(loss, metrics) of a step with these scores."""
  size = len(logits)
  outputs = types.Outputs(logits, logits, logits)
  batch = types.Batch(
    jnp.zeros((size, 1, 1, 1)),
    *(jnp.zeros(size, jnp.int32) for _ in range(3)),
    jnp.asarray(valid),
  )
  hook = caj.make(caj.Options(**options)).client.loss
  return hook({}, (), toy.step(outputs=outputs, batch=batch))


@pytest.mark.parametrize('teacher', PARTS[1:])
@pytest.mark.parametrize('temperature', [1.0, 3.0])
def test_against_a_loop_over_pairs_of_images(teacher, temperature):
  found, metrics = loss(
    scores(), lam=0.5, teacher=teacher, temperature=temperature
  )
  first = 3 * PARTS.index(teacher)
  each = []
  for n in range(2):
    p, q = (
      special.softmax(np.asarray(scores()[k, :4], 'f8') / temperature)
      for k in (n, first + n)
    )
    each.append(special.rel_entr(q, p).sum())
  expected = temperature**2 * np.mean(each)
  np.testing.assert_allclose(metrics['divergence'], expected, rtol=1e-5)
  np.testing.assert_allclose(found, 0.5 * expected, rtol=1e-5)
  # The other way round, or with the other teacher, it is another number.
  swapped = scores().reshape(3, 3, 5)[jnp.array([1, 0, 2])].reshape(9, 5)
  assert abs(loss(swapped)[0] - loss(scores())[0]) > 0.05
  assert abs(loss(scores())[0] - loss(scores(), teacher='infrared')[0]) > 0.05


@pytest.mark.parametrize('teacher', PARTS[1:])
def test_visible_images_learn_and_others_do_not(teacher):
  gradient = jax.grad(lambda x: loss(x, teacher=teacher)[0])(scores())
  rows = np.asarray(gradient).any(axis=1)
  np.testing.assert_array_equal(rows, [True, True, *[False] * 7])


def test_gradient_is_that_of_the_cross_entropy_under_the_copies():
  """CAJ+'s code: mean_n -sum_z softmax(copy)_z log softmax(visible)_z."""

  def released(logits):
    q = jax.nn.softmax(jax.lax.stop_gradient(logits[3:5]))
    return -(q * jax.nn.log_softmax(logits[:2])).sum(axis=1).mean()

  np.testing.assert_allclose(
    jax.grad(lambda x: loss(x)[0])(scores()),
    jax.grad(released)(scores()),
    atol=1e-6,
  )


def test_equal_views_have_no_loss():
  same = jnp.tile(scores()[:3], (3, 1))
  np.testing.assert_allclose(loss(same)[0], 0.0, atol=1e-6)


def test_an_image_without_its_partner_does_not_count():
  lonely = VALID.copy()
  lonely[3] = False  # the copy of the first visible image
  second_only = VALID.copy()
  second_only[[0, 3, 6]] = False
  np.testing.assert_array_equal(
    loss(scores(), lonely)[0], loss(scores(), second_only)[0]
  )
  assert loss(scores(), lonely)[0] != loss(scores())[0]


def test_a_batch_without_three_parts_is_refused():
  with pytest.raises(errors.ConfigError, match="local.sampler='pk_caj'"):
    loss(scores()[:4], VALID[:4])


def test_consistency_is_off_unless_it_is_chosen():
  plain, copy, infrared = (
    validation.validate(recipes.recipe('caj', f'paper{own}'))
    for own in ('', ',consistency=copy', ',consistency=infrared')
  )
  assert plain.components == ('fedavg', 'agw')
  assert copy.components == infrared.components == ('fedavg', 'agw', 'caj')
  assert (copy.options['caj'].teacher, copy.options['caj'].temperature) == (
    'copy',
    1.0,
  )
  assert (
    infrared.options['caj'].teacher,
    infrared.options['caj'].temperature,
  ) == ('infrared', 3.0)
  assert copy.options['caj'].lam == infrared.options['caj'].lam == 1.0


def test_other_samplers_are_refused():
  wrong = recipes.recipe('agw', 'smoke')
  wrong.components = (*wrong.components, 'caj')
  with pytest.raises(errors.ConfigError, match='not of pk_modality'):
    validation.validate(wrong)
