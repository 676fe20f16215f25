"""Weights of an embedding as files of tensors, for PyTorch or this package.

A ResNet without inserted modules is written with torchvision's names and layout
(`models.weights.tensors`). Other networks have no counterpart in
torchvision. Their tensors have this package's names and layout, and only the
format `safetensors` supports them. `model.pretrained` reads the backbone of
each `.safetensors` file.
"""

import io
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.deploy.exchange import versions
from fedreid_jax.apps.deploy.exchange.embedding import Embedding
from fedreid_jax.core import extras
from fedreid_jax.models import resnet, weights

PYTORCH = 'pip install torch, or use --format=safetensors'
STATE = 'state_dict'  # key of the tensors in a .pth file


def form(embedding: Embedding) -> str:
  """Returns the form of the names of tensors, TORCHVISION or OWN."""
  return weights.TORCHVISION if _of_torchvision(embedding) else weights.OWN


def encode_safetensors(embedding: Embedding, about: dict[str, Any]) -> bytes:
  """Returns the content of a `.safetensors` file."""
  tensors = _of_torchvision(embedding) or {
    n: np.ascontiguousarray(x) for n, x in embedding.variables.items()
  }
  return weights.encode(tensors, about | {'form': form(embedding)})


def encode_pth(embedding: Embedding, about: dict[str, Any]) -> bytes:
  """Returns the content of a `.pth` file, `state_dict` and the description.

  `torch.load` reads it with `weights_only=True`.

  Raises:
    ConfigError: without PyTorch, or for a network that torchvision has not.
  """
  model = embedding.config.model
  tensors = _of_torchvision(embedding)
  if not tensors:
    two = any(
      name.startswith(versions.INFRARED) for name in embedding.variables
    )
    raise errors.ConfigError(
      f'torchvision has no network {model.name!r} of the variant '
      f'{model.variant!r} with {model.modality_specific_stages} '
      'modality-specific stages' + ' and moments of each modality' * two,
      '--format=torch',
      'use --format=onnx, or --format=safetensors with the names of this '
      'package',
    )
  torch = extras.load('torch', '--format=torch', PYTORCH)
  state = {n: torch.from_numpy(x.copy()) for n, x in tensors.items()}
  content = io.BytesIO()
  torch.save({STATE: state, weights.HEADER: about}, content)
  return content.getvalue()


def _of_torchvision(embedding: Embedding) -> dict[str, np.ndarray]:
  """Returns tensors by torchvision's names, {} if it has no such network."""
  if embedding.config.model.name not in resnet.DEPTHS:
    return {}
  return weights.torchvision_tensors(embedding.variables)
