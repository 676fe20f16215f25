"""The built-in synthetic images as domains for training and evaluation.

A domain is `NAME[:option=value,...]`. The options are `identities`, `cameras`,
`infrared` (cameras) and `shots`, with defaults in the configuration, and
`shift`, one of `shifts.SHIFTS`: `mall:shift=noise` is the domain `mall+noise`,
with the persons of mall. A retrieval test shows identities that are not trained
on. A classification test shows later shots of training identities.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import math
import os
import platform
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import UInt8

from fedreid_jax import errors
from fedreid_jax.data import cache, federation, integrity
from fedreid_jax.data.federation import Images, Source, Target
from fedreid_jax.data.options import Data
from fedreid_jax.data.synthetic import photographs, shifts, worlds

# The runs of a study share few domains. Rendering takes a tenth of a short run,
# and the tracing and compilation of the renderer most of a very short one. At
# most 48 * 6 MiB = 288 MiB stay in memory, the most recently used ones.
MAX_BYTES = 6 * 2**20  # of the images of one call
MAX_CALLS = 48
# Of all images in the user's cache. The oldest files are removed first.
MAX_DISK_BYTES = 2**30
# Settings of JAX that change the pixels.
SETTINGS = (
  *('enable_x64', 'default_prng_impl', 'threefry_partitionable'),
  *('default_matmul_precision', 'random_seed_offset', 'disable_jit'),
  'disable_most_optimizations',
)
# When this module is imported, the other ones are as they will be run.
_SOURCES = [
  hashlib.sha256(module.read_bytes()).hexdigest()
  for module in sorted(Path(__file__).parent.glob('*.py'))
]
# The fields that determine the images, beside the sources.
FIELDS = tuple(
  'source task targets public identities cameras infrared '
  'brightness_correlation shots target_identities target_shots direction '
  'world_seed'.split()
)


COUNTS = ('identities', 'cameras', 'infrared', 'shots')


class Domain(NamedTuple):
  """Size of a domain to render."""

  name: str
  identities: int
  cameras: int  # visible ones
  infrared: int  # cameras after the visible ones
  shots: int  # images of a person by a camera
  shift: str = ''

  @property
  def title(self) -> str:
    """Name of the domain with its shift."""
    return f'{self.name}+{self.shift}' if self.shift else self.name


def load(config: Data, clients: bool = True) -> Source:
  """Describes the domains of `config.data`; pixels are rendered when needed.

  `clients=False` leaves the training domains out.

  Raises:
    ConfigError: for an unknown domain or option.
    DataError: for a domain that is both training and test domain.
  """
  usual = Domain(
    '', config.identities, config.cameras, config.infrared, config.shots
  )
  public = [_parse(spec, usual) for spec in (config.public,) if spec]
  specs = tuple(config.sources)
  if not specs:
    taken = [s.partition(':')[0] for s in (*config.targets, config.public)]
    specs = tuple(n for n in photographs.DOMAIN_NAMES if n not in taken)
  sources = [_parse(spec, usual) for spec in specs]
  learned: dict[str, Domain] = {d.name: d for d in sources}
  if config.task == 'classification':
    targets = [_later_shots(config, s, learned) for s in config.targets]
  else:
    targets = [
      _new_identities(config, s, usual, learned) for s in config.targets
    ]
    if not config.allow_overlap:
      names = [spec.partition(':')[0] for spec in config.targets]
      federation.check_disjoint([*learned], names)
  world = {'source': worlds.find(config.source).digest}
  digest = [*specs, *(world.get(f, getattr(config, f)) for f in FIELDS)]
  # The default values add nothing, so that runs from before there were these
  # fields have the same digest.
  if config.presence < 1:
    digest.append(f'presence={config.presence}')
  if config.camera_spread > 1:
    digest.append(f'camera_spread={config.camera_spread}')
  if config.tracklet:
    digest.append(f'tracklet={config.tracklet}')
  return Source(
    tuple(_seen(config, d) for d in sources) if clients else (),
    tuple(targets),
    ','.join(map(str, digest)),
    _images(config, public[0], 0) if public and clients else None,
  )


def _new_identities(config: Data, spec: str, usual: Domain, learned) -> Target:
  """Makes a test whose queries are first shots, or one of two modalities."""
  usual = usual._replace(
    identities=config.target_identities, shots=config.target_shots
  )
  domain = _parse(spec, usual, fewest=2)
  own = learned.get(domain.name)
  # The domain may be a training domain, whose identities come first.
  first = max(config.identities, own.identities if own else 0)
  images = _images(config, domain, first)
  if domain.infrared and domain.cameras:
    infrared = images.modalities == 1
    asks = config.direction == 'infrared-visible'
    query = infrared if asks else ~infrared
    made = federation.split_target(images, query)
    return made._replace(direction=config.direction)
  shot = np.arange(len(images.identities)) % domain.shots
  # The first shot, or with tracklets the first tracklet.
  return federation.split_target(images, shot < max(config.tracklet, 1))


def _later_shots(config: Data, spec: str, learned) -> Target:
  """Makes a test on the shots that follow the training shots of a domain."""
  name = spec.partition(':')[0]
  if name not in learned:
    raise errors.ConfigError(
      f'no client is trained on the classes of {name!r}',
      'data.targets',
      f'one of {", ".join(learned)}',
    )
  own = learned[name]
  domain = _parse(spec, own._replace(shots=config.target_shots))
  shots = own.shots + domain.shots
  images = _images(config, domain._replace(shots=shots), 0)
  later = np.arange(len(images.identities)) % shots >= own.shots
  return federation.class_target(
    images.take(np.flatnonzero(later)), np.arange(own.identities)
  )


def _parse(spec: str, usual: Domain, fewest: int = 1) -> Domain:
  """Parses `NAME[:option=value,...]`, with defaults from `usual`."""
  name, _, rest = spec.partition(':')
  if name not in photographs.DOMAIN_NAMES:
    raise errors.ConfigError(
      f'no domain {name!r}',
      'data.sources',
      f'one of {", ".join(photographs.DOMAIN_NAMES)}',
    )
  domain = usual._replace(name=name)
  for part in filter(None, rest.split(',')):
    option, _, value = part.partition('=')
    if option == 'shift' and value in shifts.SHIFTS:
      domain = domain._replace(shift=value)
    elif option in COUNTS and value.isdecimal():
      domain = domain._replace(**{option: int(value)})
    else:
      raise errors.ConfigError(
        f'{part!r} of {spec!r}',
        'data.sources',
        f'NAME:option=number, options {", ".join(COUNTS)}; or shift='
        f'{"|".join(shifts.SHIFTS)}',
      )
  if domain.identities < 1 or domain.shots < fewest:
    raise errors.ConfigError(
      f'too few identities or shots in {spec!r}', 'data.sources', 'ask for more'
    )
  if domain.cameras + domain.infrared < 1:
    raise errors.ConfigError(
      f'no camera in {spec!r}', 'data.sources', 'set cameras or infrared'
    )
  return domain


def _seen(config: Data, domain: Domain) -> Images:
  """Training images; every second camera sees a fraction, `presence`."""
  images = _images(config, domain, 0)
  if config.presence == 1:
    return images
  index = photographs.DOMAIN_NAMES.index(domain.name)
  sees = np.ones((domain.cameras + domain.infrared, domain.identities), bool)
  for camera in range(1, len(sees), 2):
    # The draw of a person does not depend on the number of cameras or persons.
    rng = np.random.default_rng((config.world_seed, index, camera))
    sees[camera] = rng.random(domain.identities) < config.presence
  return images.take(np.flatnonzero(sees[images.cameras, images.identities]))


def _images(config: Data, domain: Domain, first: int) -> Images:
  """Images of identities from `first`, the infrared ones last."""
  kinds = (('visible', domain.cameras), ('infrared', domain.infrared))

  @functools.cache
  def pixels() -> UInt8[np.ndarray, 'M H W ch']:
    rgb = np.concatenate(
      [
        kept_images(
          photographs.DOMAIN_NAMES.index(domain.name),
          domain.identities,
          cameras,
          domain.shots,
          height=config.height,
          width=config.width,
          seed=config.world_seed,
          modality=modality,
          first_identity=first,
          brightness_correlation=config.brightness_correlation,
          camera_spread=config.camera_spread,
          source=config.source,
          shift=domain.shift,
        )
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
  numbers = None
  if config.tracklet:
    # Shots follow each other, and the last tracklet of a camera may be shorter.
    row = np.arange(len(person), dtype=np.int32)
    each = -(-domain.shots // config.tracklet)
    shot = row % domain.shots // config.tracklet
    numbers = row // domain.shots * each + shot
  return Images(domain.title, pixels, person, camera, kind, numbers)


def kept_images(
  domain: int, *counts: int, height: int, width: int, **options: Any
) -> UInt8[np.ndarray, 'M H W 3']:
  """Images of `photographs.generate`, in a read-only array.

  The small ones are kept in memory and in the user's cache.
  """
  num_bytes = math.prod(counts) * height * width * 3
  render = _kept if num_bytes <= MAX_BYTES else _rendered
  return render(domain, *counts, height=height, width=width, **options)


def _rendered(*sizes: int, **options: Any) -> UInt8[np.ndarray, 'M H W 3']:
  found = photographs.generate(*sizes, **options).images
  # Later calls return the same array.
  found.setflags(write=False)
  return found


def _from_disk(
  *sizes: int, height: int, width: int, **options: Any
) -> UInt8[np.ndarray, 'M H W 3']:
  """Reads the images in the user's cache, and renders them if they are missing.

  A file is the SHA-256 of its key and pixels, and the pixels. A damaged file is
  written again.
  """
  given = repr((sizes, height, width, sorted(options.items())))
  key = integrity.digest(_renderer(), given)
  shape = math.prod(sizes[1:]), height, width, 3
  # A disk that cannot be used is no error: the images are rendered.
  with contextlib.suppress(OSError, RuntimeError):
    content = (folder() / key).read_bytes()
    pixels = content[_HASH:]
    if (
      len(pixels) == math.prod(shape)
      and _sealed(key, pixels) == content[:_HASH]
    ):
      return np.frombuffer(pixels, np.uint8).reshape(shape)
  found = _rendered(*sizes, height=height, width=width, **options)
  if _SOURCES:
    with contextlib.suppress(OSError, RuntimeError):
      _write(folder(), key, found.tobytes())
  return found


_HASH = hashlib.sha256().digest_size


def _sealed(key: str, pixels: bytes) -> bytes:
  return hashlib.sha256(key.encode() + pixels).digest()


def _write(where: Path, key: str, pixels: bytes) -> None:
  where.mkdir(parents=True, exist_ok=True)
  # No reader sees a part of a file.
  part = where / f'{key}.{uuid.uuid4().hex}.part'
  try:
    part.write_bytes(_sealed(key, pixels) + pixels)
    part.replace(where / key)
  finally:
    part.unlink(missing_ok=True)
  stats = [(path.stat(), path) for path in where.iterdir()]
  total = 0
  for stat, path in sorted(stats, key=lambda s: s[0].st_mtime, reverse=True):
    total += stat.st_size
    if total > MAX_DISK_BYTES:
      path.unlink(missing_ok=True)


def folder() -> Path:
  """Folder of rendered images in the user's cache."""
  return cache.cache_dir() / 'rendered'


def _renderer() -> str:
  """Digest of the facts that determine pixels beside the arguments."""
  device = jax.devices()[0]
  return integrity.digest(
    _SOURCES,
    [jax.__version__, importlib.metadata.version('jaxlib'), np.__version__],
    [str(jax.config.values['jax_default_device'] or device.device_kind)],
    [device.client.platform_version, os.environ.get('XLA_FLAGS', '')],
    [str(jax.config.values[f'jax_{name}']) for name in SETTINGS],
    _processor(),
  )


@functools.cache
def _processor() -> list[str]:
  """Type and features of the CPU, whose floats differ in their last bits."""
  names = 'model name', 'flags', 'CPU part', 'Features'
  with contextlib.suppress(OSError):
    lines = Path('/proc/cpuinfo').read_text().splitlines()
    return sorted({line for line in lines if line.startswith(names)})
  return [platform.machine(), platform.processor()]


_kept = functools.lru_cache(MAX_CALLS)(_from_disk)
