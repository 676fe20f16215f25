"""Networks of earlier versions, which took keywords in place of a context."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.models import convnet, forward, networks, reid


class Keywords(nn.Module):
  """A backbone, or a module around a network, of an earlier version."""

  network: nn.Module | None = None

  def __call__(self, x, *, train, mask=None, modalities=None, labels=None):
    return x, {}


class Open(nn.Module):
  """Takes any keywords, and no context."""

  def __call__(self, images, **inputs):
    return images


def line(call):
  with pytest.raises(errors.ConfigError) as caught:
    call()
  return caught.value.line()


def test_a_network_of_keywords_is_told_their_names():
  told = line(lambda: forward.check(Keywords(), 'model.name'))
  assert told == (
    'error[2]: Keywords.__call__ takes train, mask, modalities, labels — '
    'model.name — renamed to one argument: define __call__(self, images, ctx) '
    'and read '
    'ctx.train, ctx.mask, ctx.modalities, ctx.labels'
  )
  assert 'takes no context' in line(lambda: forward.check(Open(), 'here'))
  forward.check(reid.ReIDNet(convnet.ConvNet(), 3), 'model.name')


def test_it_is_told_wherever_the_network_comes_from():
  """A module of a component, and one that is given in Python."""
  told = line(lambda: networks.changed(convnet.ConvNet(), [Keywords]))
  assert '— components — renamed to' in told
  told = line(lambda: networks.wrap(Keywords(), (8, 8, 3)))
  assert '— the network — renamed to' in told


def test_a_wrapped_network_has_the_fields_as_arrays():
  seen = []

  class Seen(nn.Module):
    def __call__(self, images, ctx, num_identities):
      seen.append((ctx, num_identities))
      x = images.mean((1, 2))
      return types.Outputs(x, x, x)

  model = networks.wrap(Seen(), (8, 8, 3))
  model.init(networks.jax.random.key(0))
  images, cameras = jnp.zeros((2, 8, 8, 3)), np.array([3, 4])
  model.measure({}, images, cameras=cameras, num_identities=5)
  model.apply({}, images, train=False, mask=np.array([True, False]))
  (_, (measured, number), (tested, _)) = seen
  assert not measured.train and number == 5
  assert measured.cameras.tolist() == [3, 4] and measured.mask is None
  assert tested.mask.tolist() == [True, False] and tested.labels is None
