"""Writes the last model of a finished run as published weights.

  fedreid train pretrain --workdir=DIR
  python -m benchmarks.publish_weights --workdir=DIR --name=convnet-synthetic \\
    --command='fedreid train pretrain'

Two files are written into fedreid_jax/models/weights: the tensors, with a card
in their header, and the card as a page. If the run ranks the feature behind the
neck, the neck is written as well. `python -m fedreid_jax.models.weights.zoo >
docs/zoo.md` adds the weights to the model zoo.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

import fedreid_jax
from fedreid_jax.models import weights
from fedreid_jax.models.weights import zoo
from fedreid_jax.training import model_card
from fedreid_jax.training.files import recorder, run_files

RANDOM = 'random weights, so that no photograph has been seen'
_WORKDIR = flags.DEFINE_string('workdir', None, 'Finished run.', required=True)
_NAME = flags.DEFINE_string('name', None, 'Name of the weights.', required=True)
_COMMAND = flags.DEFINE_string(
  'command', None, 'Command that trained the run.', required=True
)
_START = flags.DEFINE_string(
  'started_from', RANDOM, 'Weights from which the run started, and their data.'
)
_LICENCE = flags.DEFINE_string('licence', 'Apache-2.0', 'SPDX identifier.')
_DTYPE = flags.DEFINE_enum(
  'dtype', 'float32', ['float32', 'float16'], 'Type of the stored numbers.'
)


def card(workdir: Path, config: Any) -> dict[str, Any]:
  """What a run and its files say of its weights."""
  described = recorder.read_object(workdir / run_files.DESCRIBED)
  results = recorder.read_object(workdir / recorder.RESULTS)
  last = max(entry['round'] for entry in results['evaluation'])
  clients = described['clients']
  return {
    'images': sum(client['images'] for client in clients),
    'persons': sum(client['identities'] for client in clients),
    'clients': len(clients),
    'rounds': config.rounds,
    'seed': config.seed,
    'seconds': round(results['seconds']['total']),
    'version': fedreid_jax.__version__,
    'held_out': {
      entry['target']: {
        name: entry['metrics'][name] for name in ('mAP', 'rank1')
      }
      for entry in results['evaluation']
      if entry['round'] == last and entry['model'] == 'global'
    },
    'data_digest': described['data_digest'],
  }


def main(argv: Sequence[str]) -> None:
  """Writes the weights and their card."""
  del argv
  workdir = Path(_WORKDIR.value)
  model = fedreid_jax.load(workdir)
  config = model.config
  if (config.model.pretrained or config.start_from) and not _START.present:
    raise app.UsageError('the run started from weights: give --started_from')
  about = {
    'name': _NAME.value,
    'command': _COMMAND.value,
    'started_from': _START.value,
    'licence': _LICENCE.value,
    **card(workdir, config),
    **model_card.of(config),
  }
  path = weights.FOLDER / f'{_NAME.value}{weights.SUFFIX}'
  parts = weights.BACKBONE
  if config.evaluation.feature == 'embedding':
    parts += f'|{weights.NECK}'
  weights.save(path, model.variables, about, parts, np.dtype(_DTYPE.value))
  path.with_suffix('.md').write_text(zoo.page(path))
  print(path)


if __name__ == '__main__':
  app.run(main)
