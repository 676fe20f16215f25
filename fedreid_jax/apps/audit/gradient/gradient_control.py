"""The positive control of gradient inversion: a network that can be inverted.

The network has three 5x5 convolutions of stride 2 with sigmoids and a linear
classifier. Its weights are uniform in [-1/2, 1/2], as in Zhu et al., "Deep
leakage from gradients" (NeurIPS 2019).
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Float

from fedreid_jax.apps.audit.gradient import gradient_observed, gradient_search
from fedreid_jax.apps.audit.gradient.gradient_observed import Sent
from fedreid_jax.apps.audit.gradient.gradient_search import Search
from fedreid_jax.core import param_filter
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.losses import identity

SIZE = 32, 16  # of the image
CLASSES = 10
CHANNELS = 12


class Sigmoids(nn.Module):
  """Convolutions with sigmoids and a linear classifier."""

  @nn.compact
  def __call__(self, x: Float[Array, 'B H W ch']) -> Float[Array, 'B C']:
    """Maps pixels `[B, H, W, ch]` to scores of classes `[B, C]`."""

    def init(key, shape, dtype=jnp.float32):
      return jax.random.uniform(key, shape, dtype, -0.5, 0.5)

    # Sigmoids are smooth, so that the gradient determines the image. A failure
    # with ReLU would not show whether the attack or the network is the reason.
    for _ in range(3):
      convolution = nn.Conv(
        CHANNELS, (5, 5), 2, kernel_init=init, bias_init=init
      )
      x = nn.sigmoid(convolution(x))
    x = x.reshape(len(x), -1)
    return nn.Dense(CLASSES, kernel_init=init, bias_init=init)(x)


def attack(
  image: Float[Array, '1 H W ch'], search: Search, noise: float = 0.0
) -> Float[np.ndarray, '2 h w ch']:
  """Returns the image, resized to 32 x 16, and its reconstruction.

  Args:
    image: pixels in 0..1.
    search: settings of the optimisation.
    noise: standard deviation of the noise on the gradient over its norm.
  """
  small = jax.image.resize(image, (1, *SIZE, image.shape[3]), 'linear')
  network = Sigmoids()
  variables = param_filter.flatten(
    jax.jit(network.init)(jax.random.key(search.seed), small)
  )

  def gradient(x: Array, labels: Array) -> Flat:
    def loss(own: Flat) -> Array:
      scores = network.apply(param_filter.unflatten(own), x)
      assert isinstance(scores, jax.Array)
      return identity.cross_entropy(scores, labels, jnp.ones(1, bool))

    return jax.grad(loss)(variables)

  labels = jnp.zeros(1, jnp.int32)
  own = gradient_observed.clipped(gradient) if noise else gradient
  wanted = jax.jit(own)(small, labels)
  if noise:
    key = jax.random.key(search.seed)
    wanted = gradient_observed.noisy(wanted, Sent(noise=noise), key)
  search_for = gradient_search.make(gradient, small.shape, search)
  found, _ = search_for(wanted, labels, 0)
  return np.concatenate([np.asarray(small), found])
