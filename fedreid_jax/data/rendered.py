"""The built-in synthetic world as domains to learn from and to test on."""

import functools

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data import federation, synthetic
from fedreid_jax.data.federation import Images, World

FIELDS = ('sources', 'targets', 'identities', 'cameras', 'shots', 'world_seed')


def load(config, clients: bool = True) -> World:
  """Renders what a configuration asks for, each domain when it is needed.

  Args:
    config: `config.data`.
    clients: offer the sources too, not only the targets.

  Raises:
    ConfigError: for an unknown domain.
    DataError: for a domain that is source and target.
  """
  for name in (*config.sources, *config.targets):
    if name not in synthetic.DOMAIN_NAMES:
      raise errors.ConfigError(
        f'no domain {name!r}',
        'data.sources',
        f'one of {", ".join(synthetic.DOMAIN_NAMES)}',
      )
  learned = tuple(config.sources) or tuple(
    n for n in synthetic.DOMAIN_NAMES if n not in config.targets
  )
  if not config.allow_overlap:
    federation.check_disjoint(learned, config.targets)
  sources = [
    _domain(config, name, config.identities, config.shots, 0)
    for name in (learned if clients else ())
  ]
  targets = []
  for name in config.targets:
    # Identities nobody trains on, also where a source is its own target.
    images = _domain(
      config,
      name,
      config.target_identities,
      config.target_shots,
      config.identities,
    )
    shot = np.arange(len(images.identities)) % config.target_shots
    targets.append(federation.split_target(images, shot == 0))
  digest = 'synthetic:' + ','.join(str(config[f]) for f in FIELDS)
  return World(tuple(sources), tuple(targets), digest)


def _domain(
  config, name: str, identities: int, shots: int, first: int
) -> Images:
  size = identities, config.cameras, shots

  @functools.cache
  def images() -> np.ndarray:
    rgb = synthetic.generate(
      synthetic.DOMAIN_NAMES.index(name),
      *size,
      height=config.height,
      width=config.width,
      seed=config.world_seed,
      first_identity=first,
    ).images
    return rgb if config.channels == 'rgb' else rgb[..., 1:2]

  person, camera, _ = (
    axis.reshape(-1).astype(np.int32) for axis in np.indices(size)
  )
  return Images(name, images, person, camera, np.zeros_like(person))
