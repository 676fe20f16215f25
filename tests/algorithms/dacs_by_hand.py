"""A client of DACS made by hand, for tests of DACS and what is built on it.

The network is that of `handmade` for images of four pixels. A batch has five
images, of which the last is padding.
"""

import handmade
import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.algorithms import dacs
from fedreid_jax.core.types import Batch
from fedreid_jax.method import optimizers

SHAPE = (2, 2, 1)
HEAD, KERNEL, MEAN = handmade.HEAD, handmade.KERNEL, handmade.MEAN
LABELS = np.array([0, 1, 2, 1, 0])
REAL = 4  # images of the batch
LR = 0.1
TASK = handmade.task()


def normal(seed, *shape):
  values = np.random.default_rng(seed).normal(size=shape)
  return jnp.asarray(values, jnp.float32)


VARIABLES = {
  KERNEL: normal(1, 4, 2),
  HEAD: normal(2, 2, 3),
  MEAN: normal(3, 2) / 3,
}
LOCAL = {KERNEL: normal(4, 4, 2), MEAN: normal(5, 2)}
ARRAYS = {
  dacs.SCALE: 1 + 0.1 * normal(6, *SHAPE),
  dacs.SHIFT: 0.1 * normal(7, *SHAPE),
}


def batch(poison=0.0):
  """A batch whose padding has the value `poison`."""
  images = normal(0, 5, *SHAPE).at[REAL].set(poison)
  column = jnp.zeros(5, jnp.int32)
  valid = jnp.arange(5) < REAL
  return Batch(images, jnp.asarray(LABELS), column, column, valid)


def masked(variables, images, *, mask=None, **fields):
  """The linear network, which ignores padded images as the real one does."""
  if mask is not None:
    images = jnp.where(mask[:, None, None, None], images, 0)
  return handmade.LINEAR.apply(variables, images, mask=mask, **fields)


def fields(round_, objective, variables=VARIABLES, poison=0.0):
  """Fields of a `StepCtx` and of a `LossCtx`."""
  return {
    'variables': variables,
    'batch': batch(poison),
    'model': handmade.LINEAR._replace(apply=masked),
    'objective': objective,
    'task': TASK,
    'optimizer': optimizers.sgd(0.9, False, 0.0),
    'lr': jnp.float32(LR),
    'key': jax.random.key(0),
    'round': jnp.int32(round_),
  }
