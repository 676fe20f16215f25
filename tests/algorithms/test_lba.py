import jax.numpy as jnp
import numpy as np
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import types
from fedreid_jax.losses import cross_modal, identity
from fedreid_jax.models import alignment
from fedreid_jax.round import compose


def term(**arguments):
  (made,) = compose.load(('lba',), {'lba': arguments}, algorithms)
  return made.client.loss


def context():
  """Four images, one padded, one without a partner of the same person."""
  rng = np.random.default_rng(0)

  def draw(*shape):
    return jnp.asarray(rng.uniform(size=shape), jnp.float32)

  has_positive = jnp.array([True, False, True, True])
  extras = {
    level: alignment.Alignment(
      draw(4, 6), draw(4, 6), draw(4, 6), has_positive, jnp.ones(4, bool)
    )
    for level in alignment.LEVELS
  }
  every = types.Outputs(draw(12, 5), draw(12, 5), draw(12, 3))
  own = types.Outputs(*(x[:4] for x in every[:3]), extras | {'copies': every})
  labels = jnp.array([0, 1, 2, 0])
  valid = jnp.array([True, True, True, False])
  batch = types.Batch(jnp.zeros((4, 1)), labels, labels, labels % 2, valid)
  return toy.step(batch=batch, outputs=own)


def test_the_loss_is_the_sum_of_its_parts():
  """Of the four images the first and the third count."""
  ctx = context()
  extras, labels = ctx.outputs.extras, ctx.batch.labels
  counts = jnp.array([True, False, True, False])
  logits = extras['copies'].logits
  entropy = sum(
    identity.cross_entropy(part, labels, counts)
    for part in (logits[4:8], logits[8:])
  )
  dense = sum(
    cross_modal.dense_triplet(*extras[level][:3], counts, 0.3)
    for level in ('layer3', 'layer4')
  )
  loss, metrics = term()({}, (), ctx)
  np.testing.assert_allclose(loss, entropy + 0.5 * dense, rtol=1e-6)
  np.testing.assert_allclose(metrics['dense'], dense, rtol=1e-6)
  loss, _ = term(lam=0.0)({}, (), ctx)
  np.testing.assert_allclose(loss, entropy, rtol=1e-6)
