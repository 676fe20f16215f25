"""The network of a model, and its images, in the card of a file of weights.

`of` writes the fields of a configuration on which embeddings depend as values
for JSON, and `configuration` makes a configuration of them. Exported files and
published weights have such a card (`models.weights`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.config import load as config_lib
from fedreid_jax.config import validation
from fedreid_jax.config.configuration import Config, Run
from fedreid_jax.core import plugins
from fedreid_jax.data.synthetic import versions
from fedreid_jax.models import weights
from fedreid_jax.training import build

_CHANNELS = {3: 'rgb', 1: 'grey'}
# Fields of `data.decoder` by the names that a configuration has for them.
_DECODER = {
  'height': 'height',
  'width': 'width',
  'invert': 'invert',
  'resample': 'resample',
  'max_pixels': 'max_pixels',
  'fast': 'fast_decode',
}


def of(config: Config) -> dict[str, Any]:
  """Describes the network of a configuration and the images that it takes.

  `components` are those that change the network, `options` hyper-parameters of
  the network and of these components by the name of their group,
  `preprocessing` is of image files, before the program, and `normalisation` is
  within the program.
  """
  data, ranked = config.data, config.evaluation
  made = zip(config.components, build.load_components(config), strict=True)
  changing = [name for name, component in made if component.network]
  groups = {plugins.group_of(name) for name in (config.model.name, *changing)}
  about: dict[str, Any] = {
    'model': {
      name: value
      for name, value in vars(config.model).items()
      if name not in weights.TRAINING
    },
    'components': changing,
    'options': {
      group: dict(vars(config.options[group]))
      for group in sorted(groups & config.options.keys())
    },
    'preprocessing': data.decoder()._asdict(),
    'normalisation': {
      'rule': '(pixels / 255 - mean) / std',
      'mean': list(data.mean),
      'std': list(data.std),
    },
    'embedding': {
      'feature': ranked.feature,
      'flip': ranked.flip,
      'metric': ranked.metric,
    },
  }
  source = versions.resolve(data.source)
  if source in versions.VERSIONS:
    about |= {'source': source, 'world_seed': data.world_seed}
  return about


def configuration(
  about: Mapping[str, Any], path: Path, changes: Sequence[str] = ()
) -> Config:
  """Makes the configuration of a card.

  Args:
    about: the card, complete as `of` writes it.
    path: of the file, for messages.
    changes: KEY=VALUE pairs of fields to change.

  Raises:
    IntegrityError: for a card that is damaged, or of another version.
    ConfigError: if a changed field does not exist, a value is not valid, or a
      plug-in is neither installed nor imported.
  """
  try:
    saved = _fields(about)
  except (KeyError, TypeError, AttributeError, ValueError) as error:
    raise errors.IntegrityError(
      f'its card is not complete: {type(error).__name__}: {error}',
      str(path),
      'export or publish the weights again',
    ) from error
  config_lib.check_plug_ins(saved, path)
  return validation.validate(config_lib.from_json(saved, changes, str(path)))


def _fields(about: Mapping[str, Any]) -> dict[str, Any]:
  """The object in config.json that a card describes."""
  model, images = dict(about['model']), about['preprocessing']
  for name in weights.TRAINING:
    model.pop(name, None)
  # Running statistics are used in evaluation, whatever training used.
  if model.get('norm') == 'frozen':
    model['norm'] = 'batch'
  ranked, normalisation = about['embedding'], about['normalisation']
  data = {name: images[key] for key, name in _DECODER.items()} | {
    'channels': _CHANNELS[images['channels']],
    'mean': normalisation['mean'],
    'std': normalisation['std'],
  }
  # Without a rendered world the images were photographs.
  data['source'] = about.get('source', 'folder')
  data |= {key: about[key] for key in ('world_seed',) if key in about}
  return {
    **about['options'],
    'name': about['name'],
    # A configuration needs a component that selects shared parameters.
    'components': [*Run().components, *about['components']],
    'model': model,
    'data': data,
    'evaluation': {n: ranked[n] for n in ('feature', 'flip', 'metric')},
  }
