"""Descriptions of exported models, stored in their files."""

from pathlib import Path
from typing import Any

import jax

import fedreid_jax
from fedreid_jax.apps.deploy.exchange.embedding import (
  BATCH,
  IMAGES,
  OUTPUT,
  Embedding,
)
from fedreid_jax.core import param_filter
from fedreid_jax.data import decoder
from fedreid_jax.data.synthetic import versions
from fedreid_jax.training.files import recorder, run_files

# Fields of `config.model` that do not describe the network.
_TRAINING = ('pretrained', 'dropout')
_INPUTS = {
  'images': 'decoded and resized pixels, 0 to 255, normalised in the program',
  'modalities': '0 visible, 1 infrared',
}


def describe(embedding: Embedding, workdir: Path) -> dict[str, Any]:
  """Returns the description of an embedding as values for JSON.

  Keys: `summary` (one line), `inputs` and `output` (shapes and types),
  `preprocessing` (of image files, before the program), `normalisation` (within
  the program), `embedding` (its kind, and the distance that compares it),
  `model` (fields of the network), `run` (the run and its digests), `source` and
  `world_seed` (of synthetic training images), `versions`.
  """
  config = embedding.config
  data, ranked = config.data, config.evaluation
  inputs = {
    name: _array(one) | {'values': _INPUTS[name]}
    for name, one in embedding.inputs.items()
  }
  about: dict[str, Any] = {
    'summary': summary(embedding),
    'inputs': inputs,
    'output': {OUTPUT: _array(embedding.output)},
    'preprocessing': decoder.of(data)._asdict(),
    'normalisation': {
      'rule': '(images / 255 - mean) / std',
      'mean': list(data.mean),
      'std': list(data.std),
    },
    'embedding': {
      'feature': ranked.feature,
      'flip': ranked.flip,
      'batch_stats': ranked.batch_stats,
      'metric': ranked.metric,
      'unit_length': False,
      'dtype': embedding.dtype,
    },
    'model': {
      name: value
      for name, value in config.model.to_dict().items()
      if name not in _TRAINING
    },
    'run': _run(embedding, workdir),
    'versions': {
      'fedreid_jax': fedreid_jax.__version__,
      'jax': jax.__version__,
    },
  }
  source = versions.resolve(data.source)
  if source in versions.VERSIONS:
    about |= {'source': source, 'world_seed': data.world_seed}
  return about


def _run(embedding: Embedding, workdir: Path) -> dict[str, Any]:
  """Returns the run and the model of an embedding, with their digests."""
  config = embedding.config
  described = recorder.read_object(workdir / run_files.DESCRIBED, 'data_digest')
  resolved = recorder.read_object(workdir / run_files.CONFIG)
  return {
    'recipe': config.name,
    'components': list(config.components),
    'seed': config.seed,
    'rounds': embedding.step,
    'model': embedding.name,
    'config_sha256': run_files.digests(resolved)[-1],  # of all fields
    'data_digest': described['data_digest'],
    'weights_sha256': param_filter.digest(embedding.variables),
  }


def summary(embedding: Embedding) -> str:
  """Returns the inputs and the output of the program in one line."""
  ranked = embedding.config.evaluation
  arrays = ', '.join(
    f'{name} {_text(one)}' for name, one in embedding.inputs.items()
  )
  order = {3: 'RGB', 1: 'grey'}[embedding.inputs[IMAGES].shape[-1]]
  return (
    f'{arrays} ({order}, values 0 to 255, normalised in the program) -> '
    f'{OUTPUT} {_text(embedding.output)}, to be compared by {ranked.metric} '
    'distance'
  )


def _array(one: jax.ShapeDtypeStruct) -> dict[str, Any]:
  return {'shape': _shape(one), 'dtype': str(one.dtype)}


def _shape(one: jax.ShapeDtypeStruct) -> list[int | str]:
  return [n if isinstance(n, int) else BATCH for n in one.shape]


def _text(one: jax.ShapeDtypeStruct) -> str:
  return f'{one.dtype} [{", ".join(map(str, _shape(one)))}]'
