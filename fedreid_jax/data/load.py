"""`config.data` -> the federation of a run."""

import functools

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data import federation, folder, synthetic
from fedreid_jax.data.federation import Federation, Images

WORLDS = ('synthetic', 'folder')


def load(config, clients: bool = True) -> Federation:
  """Reads or renders the images a configuration asks for.

  Args:
    config: `config.data`.
    clients: read the sources too, not only the targets.

  Raises:
    DataError: for data that cannot be trained on.
    ConfigError: for an unknown world or domain.
  """
  if config.world == 'folder':
    return folder.load(config, clients)
  return _synthetic(config, clients)


def _synthetic(config, clients: bool) -> Federation:
  """Renders the built-in world: sources to learn, targets to rank."""
  names = synthetic.DOMAIN_NAMES
  for name in (*config.sources, *config.targets):
    if name not in names:
      raise errors.ConfigError(
        f'no domain {name!r}', 'data.sources', f'one of {", ".join(names)}'
      )
  if set(config.sources) & set(config.targets) and not config.allow_overlap:
    raise errors.DataError(
      'a domain is trained and tested on',
      'data.targets',
      'drop it from data.sources or set data.allow_overlap',
    )

  def render(name: str, identities: int, shots: int, first: int) -> Images:
    size = identities, config.cameras, shots

    @functools.cache
    def sample():
      return synthetic.generate(
        names.index(name),
        *size,
        height=config.height,
        width=config.width,
        seed=config.world_seed,
        first_identity=first,
      )

    def images():
      rgb = sample().images
      return rgb if config.channels == 'rgb' else rgb[..., 1:2]

    person, camera, _ = (
      axis.reshape(-1).astype(np.int32) for axis in np.indices(size)
    )
    return Images(name, images, person, camera, np.zeros_like(person))

  sources = [
    render(name, config.identities, config.shots, 0) for name in config.sources
  ]
  targets = []
  for name in config.targets:
    # Identities nobody trains on, also where a source is its own target.
    images = render(
      name, config.target_identities, config.target_shots, config.identities
    )
    shot = np.arange(len(images.identities)) % config.target_shots
    targets.append(federation.split_target(images, shot == 0))
  fields = (
    'sources',
    'targets',
    'identities',
    'cameras',
    'shots',
    'world_seed',
  )
  return Federation(
    clients=federation.by_domain(sources) if clients else (),
    targets=tuple(targets),
    image_shape=(
      config.height,
      config.width,
      3 if config.channels == 'rgb' else 1,
    ),
    mean=tuple(config.mean),
    std=tuple(config.std),
    digest='synthetic:' + ','.join(str(config[f]) for f in fields),
  )
