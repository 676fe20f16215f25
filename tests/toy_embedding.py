"""Embeddings of untrained networks, as exports load them."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.apps.deploy import embedding, image_input
from fedreid_jax.apps.deploy.image_input import ImageInput
from fedreid_jax.data import augment
from fedreid_jax.evaluation import features
from fedreid_jax.models import networks
from fedreid_jax.round import compose, placement

SHAPE = (32, 16, 3)
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)
TINY = {'width': 1 / 16, 'last_stride': 1}
# Fields of every kind of network; those of `SPECIFIC` depend on the modality.
NETWORKS = {
  'convnet': {},
  'convnet, mapping': {'pool': 'flatten', 'neck': 'mapping', 'bottleneck': 8},
  'convnet, snr': {'components': ('snr',)},
  'resnet18': {'name': 'resnet18', 'neck': 'bnneck'},
  'resnet50, gem': {'name': 'resnet50', 'pool': 'gem', 'neck': 'bn'},
  'resnet32': {'name': 'resnet32', 'features': (4, 4, 8)},
  'resnet50_ibn_a': {'name': 'resnet50_ibn_a', 'neck': 'bnneck'},
  'mobilenet_v2': {'name': 'mobilenet_v2', 'width': 0.1},
  'osnet': {'name': 'osnet', 'options': {'width': 0.125}},
  'osnet, ain': {'name': 'osnet', 'options': {'kind': 'ain', 'width': 0.125}},
  'vit': {'name': 'vit', 'neck': 'bnneck'},
  'vit, overlapping': {'name': 'vit', 'options': {'stride': 6}},
  'vit, clip': {
    'name': 'vit',
    'options': {'pre_norm': True, 'quick_gelu': True, 'layer_scale': True},
  },
}
SPECIFIC = {
  'agw': {'modality_specific_stages': 1, 'pool': 'gem'},
  'deen': {'modality_specific_stages': 1, 'gain': 0.3},
  'dns': {'modality_specific_stages': 3, 'pool': 'gem'},
  'lba': {'modality_specific_stages': 1, 'pool': 'gem'},
}
QUICK = ('convnet', 'convnet, mapping', 'resnet18', 'vit')
every_network = pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in (*NETWORKS, *SPECIFIC)
  ],
)


def make(
  shape: tuple[int, int, int] = SHAPE,
  flip: bool = False,
  feature: str = 'embedding',
  gain: float = 1.0,
  options: dict[str, Any] | None = None,
  components: tuple[str, ...] = (),
  received: ImageInput = image_input.DEFAULT,
  **model,
) -> embedding.Embedding:
  """Returns an embedding with random weights and running statistics.

  Args:
    shape: of an image.
    flip: `evaluation.flip`.
    feature: `evaluation.feature`.
    gain: factor of the kernels.
    options: hyper-parameters of a network of `backbones`.
    components: those that change the network.
    received: form of the input 'images'.
    **model: fields of `model`.
  """
  config = toy.replaced(
    toy.toy_config(),
    {
      'data.height': shape[0],
      'data.width': shape[1],
      'data.channels': 'rgb' if shape[2] == 3 else 'grey',
      **{f'model.{name}': value for name, value in model.items()},
      'data.mean': MEAN,
      'data.std': STD,
      'evaluation.flip': flip,
      'evaluation.feature': feature,
    },
  )
  changes = [
    component.network
    for component in compose.load(components, {}, algorithms)
    if component.network
  ]
  network = networks.wrap(
    networks.build(config.model, 3, options, changes), shape
  )
  shapes = jax.eval_shape(network.init, jax.random.key(0))
  variables = random_variables(shapes, gain)
  view = augment.make(config.augment, MEAN, STD).test
  ranked = {'flip': flip, 'feature': feature}
  function = features.make_embedding(network, received.view(view), **ranked)
  extract = features.make_extractor(
    network, view, placement.make_mesh(1), batch=3, **ranked
  )
  return embedding.Embedding(
    config,
    2,
    'global',
    networks.dtype(config.model.dtype, 'cpu'),
    *embedding.trace(function, variables, shape, received),
    functools.partial(extract, variables),
    received,
  )


def tiny(name: str, **options) -> embedding.Embedding:
  """Returns a small network of `NETWORKS` or `SPECIFIC`."""
  specific = name in SPECIFIC
  if specific:
    fields = {'name': 'resnet18', 'components': (name,)} | SPECIFIC[name]
  else:
    fields = NETWORKS[name]
  return make(**TINY | fields, **options)


def random_variables(shapes, gain=1.0):
  """Returns random values of all leaves; activations stay near 1."""
  rng = np.random.default_rng(0)
  found = {}
  for name, leaf in shapes.items():
    values = 0.1 * rng.standard_normal(leaf.shape)
    kind = name.rpartition('/')[2]
    if kind == 'kernel':
      values *= 10 * gain / np.sqrt(np.prod(leaf.shape[:-1]))
    found[name] = (values + (kind in ('var', 'scale'))).astype(np.float32)
  return found


def pixels(num: int, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
  """Returns random images, uint8."""
  return np.random.default_rng(1).integers(0, 256, (num, *shape), np.uint8)


def inputs(found: embedding.Embedding, num: int) -> list[np.ndarray]:
  """Returns random values of the inputs of an embedding, in order."""
  images = pixels(num, found.image_shape)
  values = {
    'images': found.received.of_pixels(images, found.normalisation),
    'modalities': (np.arange(num) % 2).astype(np.int32),
  }
  return [values[name] for name in found.inputs]


def expected(found: embedding.Embedding, num: int) -> np.ndarray:
  """Returns what the evaluation computes for `inputs`."""
  shape = found.image_shape
  return found.evaluate(pixels(num, shape), np.arange(num, dtype=np.int32) % 2)
