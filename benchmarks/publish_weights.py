"""Writes the backbone of a finished `pretrain` run as published weights.

  fedreid train pretrain --workdir=DIR
  python -m benchmarks.publish_weights --workdir=DIR --name=convnet-synthetic

Two files are written into fedreid_jax/models/weights: the tensors, with a card
in their header, and the card as a page.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

import fedreid_jax
from fedreid_jax.core import trees
from fedreid_jax.data.synthetic import versions
from fedreid_jax.models import weights
from fedreid_jax.training.files import recorder, run_files

_WORKDIR = flags.DEFINE_string('workdir', None, 'Finished run.', required=True)
_NAME = flags.DEFINE_string('name', None, 'Name of the weights.', required=True)
_FIELDS = {
  'convnet': ('name', 'features'),
  'resnet18': ('name', 'width', 'small_stem'),
  'vit': ('name',),  # of the size tiny
}

_PAGE = """# {name}

The backbone of `{network}`: {parameters:,} parameters in {size:,} bytes.
Command: `{command}`.

Data: {images:,} synthetic images of {persons:,} persons, of all domains but
{target} of world {world_seed} of `{source}`;
{height} x {width} pixels, normalised with
the mean {mean} and the standard deviation {std};
{cameras} visible cameras and {infrared} infrared camera a domain.
Training: cross-entropy, {rounds} rounds of one epoch, version {version}.

- Other persons, of the domain {target}, are found with {mAP:.1f} mAP and
  {rank1:.1f} % rank-1.
- The weights fit `{settings}`
  and every variant of this network. Modules that a variant inserts start from
  their own values, infrared stages from those of the visible ones.
- A run on the world {world_seed} of `{source}` is refused, because it would be
  tested on persons or cameras of this training.
- The weights have never seen a photograph. They take the place of ImageNet's in
  experiments on synthetic images, and do not replace them on photographs.

SHA-256 of the file: `{digest}`
"""


def main(argv: Sequence[str]) -> None:
  """Writes the weights and their card."""
  del argv
  workdir = Path(_WORKDIR.value)
  model = fedreid_jax.load(workdir)
  config, data = model.config, model.config.data
  described = recorder.read_object(workdir / run_files.DESCRIBED)
  results = recorder.read_object(workdir / recorder.RESULTS)
  network = config.model.name
  settings = {k: getattr(config.model, k) for k in _FIELDS[network]}
  option = '' if network == 'convnet' else f':network={network}'
  about: dict[str, Any] = {
    'name': _NAME.value,
    'model': settings,
    'source': versions.resolve(data.source),
    'world_seed': data.world_seed,
    'command': f'fedreid train pretrain{option}',
    'data_digest': described['data_digest'],
  }
  path = weights.FOLDER / f'{_NAME.value}{weights.SUFFIX}'
  weights.save(path, model.variables, about)
  kept, _ = trees.split(dict(model.variables), weights.BACKBONE)
  last = results['evaluation'][-1]
  page = _PAGE.format(
    **about,
    network=network,
    parameters=sum(x.size for n, x in kept.items() if n.startswith('params/')),
    size=path.stat().st_size,
    images=sum(c['images'] for c in described['clients']),
    persons=sum(c['identities'] for c in described['clients']),
    height=data.height,
    width=data.width,
    cameras=data.cameras,
    infrared=data.infrared,
    rounds=config.rounds,
    mean=data.mean,
    std=data.std,
    target=last['target'],
    **last['metrics'],
    settings=weights.settings(path),
    version=fedreid_jax.__version__,
    digest=hashlib.sha256(path.read_bytes()).hexdigest(),
  )
  path.with_suffix('.md').write_text(page)
  print(path)


if __name__ == '__main__':
  app.run(main)
