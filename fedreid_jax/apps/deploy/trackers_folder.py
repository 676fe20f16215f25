"""Folders of weights that the trackers of Roboflow read.

The reader is `ReIDModel.from_pretrained(FOLDER)` of the package `reid`, with
which `trackers` embeds persons. A folder has two files: `reid_config.json` with
the name of the network and the preprocessing, and `weights.safetensors` with
all tensors of that network, each of its shape. The networks are OSNets with
their last layer, and those of timm without a classifier (`timm:resnet50`). The
reader has neither a neck nor a mirror image, so that an embedding is written
only if such a network computes it.
"""

import json
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.deploy.embedding import Embedding
from fedreid_jax.models import weights
from fedreid_jax.models.layers import norm
from fedreid_jax.models.weights import pytorch, sources

CONFIG, WEIGHTS = 'reid_config.json', 'weights.safetensors'
SUFFIX = '-trackers'  # of the folder
# By the channels of the last maps.
OSNETS = {
  512: 'osnet_x1_0',
  384: 'osnet_x0_75',
  256: 'osnet_x0_5',
  128: 'osnet_x0_25',
}
RESNETS = ('resnet18', 'resnet34', 'resnet50', 'resnet101')
FILTERS = ('bilinear', 'bicubic')  # for resizing
FEATURES = 512  # of the last layer of an OSNet
_STEM = 64, 3, 7, 7  # shape of the first kernel of a ResNet
_ONLY = (
  f'it has osnet of width 1, 0.75, 0.5 and 0.25 and {", ".join(RESNETS)} of '
  'width 1'
)


def encode(embedding: Embedding, about: dict[str, Any]) -> dict[str, bytes]:
  """The content of the files by name.

  Raises:
    ConfigError: for an embedding that the reader cannot compute.
  """
  tensors = pytorch.tensors(embedding.variables)
  family = pytorch.family(embedding.variables)
  if tensors and family == sources.TORCHREID:
    name, last = _osnet(embedding, tensors)
  elif tensors and family == sources.TORCHVISION:
    name, last = _resnet(embedding, tensors), {}
  else:
    model = embedding.config.model
    norm_kind = ', model.norm=group' * (model.norm == 'group')
    raise _refused(f'no network {model.name!r}{norm_kind}', _ONLY)
  _check(embedding)
  state = {n: x for n, x in tensors.items() if not n.startswith('neck.')} | last
  # PyTorch counts batches, and the reader wants every tensor of the state.
  mean = f'.{pytorch.MEAN}'
  state |= {
    n.removesuffix(mean) + sources.COUNTER: np.zeros((), np.int64)
    for n in state
    if n.endswith(mean)
  }
  decoder = about['preprocessing']
  normalisation = embedding.normalisation
  config = {
    'architecture': name,
    'preprocessing': {
      'input_size': [decoder['height'], decoder['width']],
      'mean': [*normalisation.mean],
      'std': [*normalisation.std],
      'interpolation': decoder['resample'],
      'to_rgb': True,  # frames of OpenCV are BGR
      'resize_mode': 'stretch',
    },
  }
  card = about | {'form': family}
  return {
    WEIGHTS: weights.encode(state, card),
    CONFIG: json.dumps(config, indent=2).encode(),
  }


def _refused(problem: str, remedy: str) -> errors.ConfigError:
  return errors.ConfigError(
    f"the trackers' reader has {problem}",
    '--format=trackers',
    f'{remedy}; or use --format=onnx',
  )


def _check(embedding: Embedding) -> None:
  """Refuses what the reader does not do around any network."""
  config = embedding.config
  data, model = config.data, config.model
  for unfit, problem, remedy in (
    (config.evaluation.flip, 'no mirror image', 'evaluation.flip=False'),
    (embedding.image_shape[-1] != 3, 'no grey images', 'data.channels=rgb'),
    (data.invert, 'no inverted images', 'data.invert=False'),
    (
      data.resample not in FILTERS,
      f'no filter {data.resample}',
      f'data.resample={FILTERS[0]}',
    ),
    (model.pool != 'gap', f'no pooling {model.pool}', 'model.pool=gap'),
  ):
    if unfit:
      raise _refused(problem, f'train with {remedy}')


def _is_pooled(embedding: Embedding) -> bool:
  """Whether the mean of the maps is ranked, without a neck."""
  ranked = embedding.config.evaluation.feature
  neck = embedding.config.model.neck
  return ranked == 'feature' or (ranked == 'embedding' and neck == 'none')


def _resnet(embedding: Embedding, tensors: dict[str, np.ndarray]) -> str:
  model = embedding.config.model
  if model.name not in RESNETS or tensors['conv1.weight'].shape != _STEM:
    raise _refused(f'no such {model.name}', _ONLY)
  if model.last_stride != 2:
    raise _refused(
      f'the last stride 2 in {model.name}', 'train with model.last_stride=2'
    )
  if not _is_pooled(embedding):
    raise _refused('no neck', 'train with evaluation.feature=feature')
  return f'timm:{model.name}'


def _osnet(
  embedding: Embedding, tensors: dict[str, np.ndarray]
) -> tuple[str, dict[str, np.ndarray]]:
  """The name of an OSNet, and the tensors of its last layer."""
  kernel = tensors.get('conv5.conv.weight')
  width = len(kernel) if kernel is not None else 0
  # OSNet-AIN has no moments in its first layer.
  if width not in OSNETS or f'conv1.bn.{pytorch.MEAN}' not in tensors:
    raise _refused('no such osnet', f'{_ONLY}, and osnet.kind=plain')
  model = embedding.config.model
  if _is_pooled(embedding) and width == FEATURES:
    return OSNETS[width], _unchanged(width)
  neck = {
    n.removeprefix('neck.'): x
    for n, x in tensors.items()
    if n.startswith('neck.')
  }
  mapped = model.neck == 'mapping' and model.bottleneck == FEATURES
  if not (mapped and embedding.config.evaluation.feature == 'embedding'):
    raise _refused(
      'the last layer of OSNet as its only neck',
      f'train with model.neck=mapping and model.bottleneck={FEATURES}',
    )
  layers = {'fc.': 'fc.0.', 'bn.': 'fc.1.'}
  return OSNETS[width], {layers[n[:3]] + n[3:]: x for n, x in neck.items()}


def _unchanged(width: int) -> dict[str, np.ndarray]:
  """A last layer that returns its input, since means of ReLUs are positive."""
  one, zero = np.ones(width, np.float32), np.zeros(width, np.float32)
  return {
    'fc.0.weight': np.eye(width, dtype=np.float32),
    'fc.0.bias': zero,
    'fc.1.weight': one,
    'fc.1.bias': zero.copy(),
    f'fc.1.{pytorch.MEAN}': zero.copy(),
    'fc.1.running_var': one - np.float32(norm.EPSILON),
  }
