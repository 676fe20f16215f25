import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.models import alignment, reid, resnet
from fedreid_jax.models.forward import ForwardCtx

KEY = jax.random.key(0)
LABELS = jnp.array([0, 0, 1, 1, 0, 1])
MODALITIES = jnp.array([0, 1, 1, 0, 1, 0])


@pytest.fixture(scope='module')
def network():
  """A tiny network, its variables, and a training pass."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(resnet.DEPTHS, 'resnet18', (False, (1, 1, 1, 1)))
    backbone = alignment.CMAlign('resnet18', 1 / 16, True, 1)
    model = reid.ReIDNet(backbone, 5, 'gem', 'bnneck')
    init = jax.jit(lambda k, x: model.init(k, x, ForwardCtx(False)))
    variables = init(KEY, images())
    everyone = jnp.ones(6, bool)
    run = jax.jit(
      lambda key: train(model, variables, images(), key, everyone, LABELS)
    )
    yield model, variables, run


def images():
  values = np.random.default_rng(0).standard_normal((6, 16, 8, 3))
  return jnp.asarray(values, jnp.float32)


def train(model, variables, batch, key, mask, labels):
  return model.apply(
    variables,
    batch,
    ForwardCtx(True, mask, MODALITIES, labels),
    rngs={'dropout': key},
    mutable=['batch_stats'],
  )


def test_partners_are_of_the_other_modality_and_the_right_person():
  labels = np.repeat(np.arange(4), 6)
  modalities = np.tile([0, 0, 1, 1, 1, 0], 4)
  real = np.arange(24) % 5 != 0
  draw = jax.jit(jax.vmap(alignment.partners, (None, None, None, 0)))
  same, has_same, other, has_other = (
    np.asarray(x)
    for x in draw(labels, modalities, real, jax.random.split(KEY, 200))
  )
  rows = np.flatnonzero(real)
  assert has_same[:, rows].all() and has_other[:, rows].all()
  assert not has_same[:, ~real].any() and not has_other[:, ~real].any()
  for i in rows:
    across = real & (modalities != modalities[i])
    mates = np.flatnonzero(across & (labels == labels[i]))
    others = np.flatnonzero(across & (labels != labels[i]))
    assert set(same[:, i]) == set(mates)
    assert set(other[:, i]) == set(others)


def test_partners_are_drawn_by_the_key():
  @jax.jit
  def draw(seed):
    real = jnp.ones(6, bool)
    key = jax.random.key(seed)
    return alignment.partners(LABELS, MODALITIES, real, key)

  jax.tree.map(np.testing.assert_array_equal, draw(3), draw(3))
  assert len({np.asarray(draw(s)[2]).tobytes() for s in range(20)}) > 5


def test_no_partner_in_the_batch():
  both = np.array([0, 0, 1])
  _, has_same, _, has_other = jax.jit(alignment.partners)(
    both, both, np.ones(3, bool), KEY
  )
  assert not has_same.any() and has_other.all()


def activity(shape=(4, 3, 2, 5), seed=1):
  values = np.random.default_rng(seed).normal(size=shape)
  return np.maximum(values, 0).astype(np.float32)


def stretch(x):
  return (x - x.min()) / (x - x.min()).max()


def warp_by_hand(query, target):
  """One image, positions one after another."""
  unit = [m / np.linalg.norm(m, axis=1, keepdims=True) for m in (query, target)]
  weights = np.exp(50 * unit[0] @ unit[1].T)
  weights /= weights.sum(axis=1, keepdims=True)
  return weights, weights @ target


def test_alignment_equals_a_loop_over_images():
  maps = activity() + 0.01
  same, other = np.array([1, 0, 3, 2]), np.array([3, 2, 1, 0])
  yes = np.ones(4, bool)
  rebuilt, found = jax.jit(alignment.align)(maps, same, yes, other, yes)
  flat = maps.reshape(4, 6, 5).astype(np.float64)
  for i in range(4):
    mask = [stretch(np.linalg.norm(f, axis=1)) for f in flat]
    mine = mask[i][:, None]
    weights, warped = warp_by_hand(flat[i], flat[same[i]])
    positive = mine * warped + (1 - mine) * flat[i]
    _, warped = warp_by_hand(flat[i], flat[other[i]])
    negative = mine * warped + (1 - mine) * flat[i]
    expected = dict(
      comask=stretch(mask[i] * (weights @ mask[same[i]])),
      positive=np.linalg.norm(flat[i] - positive, axis=1),
      negative=np.linalg.norm(flat[i] - negative, axis=1),
    )
    for name, value in expected.items():
      np.testing.assert_allclose(
        getattr(found, name)[i], value, rtol=1e-3, atol=1e-5
      )
    np.testing.assert_allclose(
      rebuilt[i].reshape(6, 5), positive, rtol=1e-3, atol=1e-5
    )


def test_an_image_aligned_with_itself_is_matched_position_by_position():
  maps = np.eye(5, dtype=np.float32)[None]
  matching, warped = jax.jit(alignment.warp)(3 * maps, maps)
  np.testing.assert_allclose(matching, maps, atol=1e-6)
  np.testing.assert_allclose(warped, maps, atol=1e-6)


def test_matching_is_not_rounded_to_short_floats():
  maps = jnp.ones((2, 3, 4))
  program = str(jax.make_jaxpr(alignment.warp)(maps, maps))
  products = program.count('dot_general')
  assert products and program.count('Precision.HIGHEST') == 2 * products


def test_without_a_partner_the_map_is_its_own_reconstruction():
  maps, index = activity(), np.zeros(4, np.int32)
  none = np.zeros(4, bool)
  rebuilt, found = jax.jit(alignment.align)(maps, index, none, index, none)
  np.testing.assert_array_equal(rebuilt, maps)
  assert not found.has_positive.any()


def test_masks_have_no_gradient():
  maps, index = jnp.asarray(activity()), jnp.array([1, 0, 3, 2])
  yes = jnp.ones(4, bool)

  def comask(maps):
    return alignment.align(maps, index, yes, index, yes)[1].comask.sum()

  gradient = jax.jit(jax.grad(comask))(maps)
  np.testing.assert_array_equal(gradient, np.zeros_like(maps))


@pytest.mark.parametrize('maps', [np.zeros((4, 3, 2, 5)), activity()])
def test_gradients_are_finite_without_activity(maps):
  """Whole maps, or single positions, may be zero after ReLU."""
  maps = np.array(maps, np.float32)
  maps[0, 0, 0] = 0
  index, yes = jnp.array([1, 0, 3, 2]), jnp.ones(4, bool)

  def total(maps):
    rebuilt, found = alignment.align(maps, index, yes, index[::-1], yes)
    return (
      rebuilt.sum()
      + (found.comask * found.positive).sum()
      - (found.negative.sum())
    )

  value, grad = jax.jit(jax.value_and_grad(total))(jnp.asarray(maps))
  assert np.isfinite(value) and np.isfinite(grad).all()
  assert np.abs(grad).max() < 1e3


@pytest.mark.slow
def test_three_maps_of_an_image_in_training_one_in_evaluation(network):
  model, variables, run = network
  outputs, _ = run(KEY)
  own, third, fourth = jnp.split(outputs.extras['copies'].feature, 3)
  np.testing.assert_array_equal(own, outputs.feature)
  for rebuilt in (third, fourth):
    assert rebuilt.shape == (6, 32)
    assert (np.abs(rebuilt - own).max(axis=1) > 1e-4).all()
  for level in alignment.LEVELS:
    aligned = outputs.extras[level]
    assert aligned.comask.shape == aligned.positive.shape == (6, 8)
    assert aligned.has_positive.all() and aligned.has_negative.all()
  plain = jax.eval_shape(
    lambda v: model.apply(
      v, images(), ForwardCtx(False, None, MODALITIES, LABELS)
    ),
    variables,
  )
  assert plain.feature.shape == (6, 32) and plain.extras == {}


def test_without_labels_there_is_nothing_to_align(network):
  model, variables, _ = network
  outputs, _ = jax.eval_shape(
    lambda v: train(model, v, images(), KEY, jnp.ones(6, bool), None),
    variables,
  )
  assert outputs.extras == {}


def test_the_same_key_draws_the_same_partners(network):
  _, _, run = network
  jax.tree.map(np.testing.assert_array_equal, run(KEY), run(KEY))
  others = [run(jax.random.key(s))[0].extras['layer3'] for s in range(1, 4)]
  assert any(
    (np.asarray(o.negative) != run(KEY)[0].extras['layer3'].negative).any()
    for o in others
  )


@pytest.mark.slow
def test_padding_changes_no_bit_and_gradients_are_finite(network):
  model, variables, _ = network
  mask = jnp.array([True] * 5 + [False])

  @jax.jit
  def step(batch, labels):
    def loss(params):
      outputs, updated = train(
        model, variables | {'params': params}, batch, KEY, mask, labels
      )
      every = outputs.extras['copies'].logits
      real = jnp.where(jnp.tile(mask, 3)[:, None], every, 0)
      dense = [
        jnp.where(mask[:, None], outputs.extras[level].positive, 0)
        for level in alignment.LEVELS
      ]
      total = jnp.square(real - 1).sum() + sum(d.sum() for d in dense)
      return total, (real, dense, updated)

    return jax.value_and_grad(loss, has_aux=True)(variables['params'])

  clean = step(images(), LABELS)
  for poison, label in ((jnp.nan, 0), (7.0, 1)):
    poisoned = step(images().at[5].set(poison), LABELS.at[5].set(label))
    jax.tree.map(np.testing.assert_array_equal, clean, poisoned)
  jax.tree.map(lambda leaf: np.isfinite(leaf).all() or pytest.fail(), clean)


@pytest.mark.usefixtures('network')
def test_every_part_may_be_modality_specific():
  """The last part has three rows of each image in training."""
  backbone = alignment.CMAlign(
    'resnet18', 1 / 16, True, 1, modality_specific_stages=5
  )

  def run(x):
    variables = backbone.init(KEY, x, ForwardCtx(False, None, MODALITIES))
    return train(backbone, variables, x, KEY, None, LABELS)[0]

  maps, _ = jax.eval_shape(run, images())
  assert len(maps) == 3 * len(MODALITIES)
