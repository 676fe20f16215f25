"""The built-in synthetic world as domains to learn from and to test on.

A domain is `NAME[:option=value,...]`; the options are `identities`, `cameras`,
`infrared` (cameras) and `shots`, and the configuration has their defaults.
"""

import functools
from typing import NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data import federation, synthetic
from fedreid_jax.data.federation import Images, Target, World

FIELDS = (
  'identities',
  'cameras',
  'infrared',
  'shots',
  'target_identities',
  'target_shots',
  'direction',
  'world_seed',
)


class Domain(NamedTuple):
  """What is rendered of a domain.

  Attributes:
    name: of the domain.
    identities: how many persons.
    cameras: visible cameras.
    infrared: infrared cameras, numbered after the visible ones.
    shots: images of a person from a camera.
  """

  name: str
  identities: int
  cameras: int
  infrared: int
  shots: int


def load(config, clients: bool = True) -> World:
  """Renders what a configuration asks for, each domain when it is needed.

  Args:
    config: `config.data`.
    clients: offer the sources too, not only the targets.

  Raises:
    ConfigError: for an unknown domain or option.
    DataError: for a domain that is source and target.
  """
  sources = [_parse(config, spec) for spec in config.sources]
  targets = [_parse(config, spec, target=True) for spec in config.targets]
  public = [_parse(config, spec) for spec in (config.public,) if spec]
  if not sources:
    taken = {d.name for d in (*targets, *public)}
    sources = [
      _parse(config, n) for n in synthetic.DOMAIN_NAMES if n not in taken
    ]
  names = [d.name for d in sources]
  if not config.allow_overlap:
    federation.check_disjoint(names, [d.name for d in targets])
  learned = {d.name: d.identities for d in sources}
  digest = 'synthetic:' + ','.join(
    str(part)
    for part in (*sources, *targets, *public, *(config[f] for f in FIELDS))
  )
  return World(
    tuple(_images(config, d, 0) for d in sources) if clients else (),
    # Identities nobody trains on, also where a source is its own target.
    tuple(
      _target(config, d, max(config.identities, learned.get(d.name, 0)))
      for d in targets
    ),
    digest,
    _images(config, public[0], 0) if public and clients else None,
  )


def _parse(config, spec: str, target: bool = False) -> Domain:
  name, _, rest = spec.partition(':')
  if name not in synthetic.DOMAIN_NAMES:
    raise errors.ConfigError(
      f'no domain {name!r}',
      'data.sources',
      f'one of {", ".join(synthetic.DOMAIN_NAMES)}',
    )
  domain = Domain(
    name,
    config.target_identities if target else config.identities,
    config.cameras,
    config.infrared,
    config.target_shots if target else config.shots,
  )
  for part in filter(None, rest.split(',')):
    option, _, value = part.partition('=')
    if option not in Domain._fields[1:] or not value.isdecimal():
      raise errors.ConfigError(
        f'{part!r} of {spec!r}',
        'data.sources',
        f'NAME:option=number, options {", ".join(Domain._fields[1:])}',
      )
    domain = domain._replace(**{option: int(value)})
  if domain.identities < 1 or domain.shots < 1 + target:
    raise errors.ConfigError(
      f'too few identities or shots in {spec!r}', 'data.sources', 'ask for more'
    )
  if domain.cameras + domain.infrared < 1:
    raise errors.ConfigError(
      f'no camera in {spec!r}', 'data.sources', 'set cameras or infrared'
    )
  return domain


def _images(config, domain: Domain, first: int) -> Images:
  """Returns the visible images of a domain, then the infrared ones.

  Args:
    config: `config.data`.
    domain: what to render.
    first: number of the first identity.
  """
  kinds = (('visible', domain.cameras), ('infrared', domain.infrared))

  @functools.cache
  def images() -> np.ndarray:
    rgb = np.concatenate(
      [
        synthetic.generate(
          synthetic.DOMAIN_NAMES.index(domain.name),
          domain.identities,
          cameras,
          domain.shots,
          height=config.height,
          width=config.width,
          seed=config.world_seed,
          modality=modality,
          first_identity=first,
        ).images
        for modality, cameras in kinds
        if cameras
      ]
    )
    return rgb if config.channels == 'rgb' else rgb[..., 1:2]

  columns = []
  for modality, (_, cameras) in enumerate(kinds):
    size = domain.identities, cameras, domain.shots
    person, camera, _ = (axis.reshape(-1) for axis in np.indices(size))
    camera = camera + modality * domain.cameras
    columns.append((person, camera, np.full_like(person, modality)))
  person, camera, kind = (
    np.concatenate(c).astype(np.int32) for c in zip(*columns, strict=True)
  )
  return Images(domain.name, images, person, camera, kind)


def _target(config, domain: Domain, first: int) -> Target:
  """Asks for first shots, or for all images of one modality in the other."""
  images = _images(config, domain, first)
  if domain.infrared and domain.cameras:
    infrared = images.modalities == 1
    asks = config.direction == 'infrared-visible'
    query = infrared if asks else ~infrared
    made = federation.split_target(images, query)
    return made._replace(direction=config.direction)
  shot = np.arange(len(images.identities)) % domain.shots
  return federation.split_target(images, shot == 0)
