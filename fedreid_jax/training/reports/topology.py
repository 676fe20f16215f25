"""Programs of a round, compiled for accelerators that are not there.

A topology is a description of a pod: its compiler reports the memory, the
operations and the collectives of a program, and nothing is run. The clients
have the published numbers of images and persons of their data sets, and no
image is read.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.config.configuration import Config
from fedreid_jax.config.validation import load_components
from fedreid_jax.data import augment, load
from fedreid_jax.data.benchmark.benchmark_source import LEARN
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.federation import Federation, Images
from fedreid_jax.models import networks
from fedreid_jax.round import ahead, costs, placement
from fedreid_jax.round.local_training import STEP
from fedreid_jax.training import budget, build, engine

GIB = 2**30
IMAGES = 10  # of a person, where the number of images is not published


class Chip(NamedTuple):
  """Published peak figures of a chip, per second."""

  memory: float  # bytes
  flops: float  # bfloat16
  bandwidth: float  # bytes of its memory


class Gpu(NamedTuple):
  """The properties of a GPU for which XLA compiles without one."""

  kind: str  # `device_kind`
  major: int  # of the compute capability, whose minor is 0
  cores: int  # streaming multiprocessors
  shared: int  # bytes of shared memory of a core
  cache: int  # bytes of the second level
  ghz: float
  chip: Chip


# From the pages of NVIDIA on these GPUs with SXM, without sparsity.
GPUS = {
  'a100': Gpu(
    *('NVIDIA A100-SXM4-80GB', 8, 108, 167936, 40 * 2**20, 1.41),
    Chip(80 * GIB, 312e12, 2039e9),
  ),
  'h100': Gpu(
    *('NVIDIA H100 80GB HBM3', 9, 132, 233472, 50 * 2**20, 1.98),
    Chip(80 * GIB, 989e12, 3352e9),
  ),
  'h200': Gpu(
    *('NVIDIA H200', 9, 132, 233472, 50 * 2**20, 1.98),
    Chip(141 * 10**9, 989e12, 4800e9),
  ),
}
# By `device_kind`, from the pages of Google Cloud on TPU versions.
CHIPS = {
  'TPU v4': Chip(32 * GIB, 275e12, 1228e9),
  'TPU v5 lite': Chip(16 * GIB, 197e12, 819e9),
  'TPU v5': Chip(95 * GIB, 459e12, 2765e9),
  'TPU v6 lite': Chip(32 * GIB, 918e12, 1640e9),
} | {gpu.kind: gpu.chip for gpu in GPUS.values()}
COLLECTIVES = (
  *('all-reduce', 'all-gather', 'reduce-scatter'),
  *('collective-permute', 'all-to-all'),
)
_CALL = re.compile(
  rf'= (?P<shape>.*?) (?P<kind>{"|".join(COLLECTIVES)})(-start)?\('
)
_ARRAY = re.compile(r'(pred|[a-z]+\d+)\[([\d,]*)\](?:\{([^}]*)\})?')
_NAME = re.compile(r'%[\w.\-]+')
_COMPUTATION = re.compile(r'(?:ENTRY )?(%[\w.\-]+) \(.*\{$')
_INNER = re.compile(r'(?:calls|to_apply)=(%[\w.\-]+)')
_OPERATION = re.compile(
  r'\s+(?:ROOT )?(%[\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)'
)
# Operations that move nothing, or whose arrays those that use them move.
_VIEWS = (
  *('parameter', 'tuple', 'get-tuple-element', 'bitcast', 'constant'),
  *('while', 'conditional', 'call'),
)
_GATHERS = 'gather', 'dynamic-slice'
# In the layout of an array that is in a memory on the chip.
_ON_CHIP = 'S('
_BITS = re.compile(r'\d+')
# The axes, the most minor one first, and the sizes of a tile, whose last one is
# that of the most minor axis.
_TILED = re.compile(r'([\d,]+):T\(([\d,]+)\)')
_SCOPE = re.compile(r'op_name="([^"]*)"')


class Program(NamedTuple):
  """Figures of one compiled program, of one chip."""

  name: str
  memory: costs.Memory
  code: int  # bytes
  flops: float  # bodies of loops count once
  # Bytes between the chip and its large memory in one step of one client, and
  # the others; all are others in a program without steps.
  moved: float
  others: float
  seconds: float  # estimate of the compiler, likewise
  collectives: dict[str, tuple[int, int]]  # (number, bytes) by kind

  @property
  def need(self) -> int:
    """Bytes that the program needs of a chip."""
    return sum(self.memory) + self.code

  def floor(self, chip: Chip) -> float:
    """Returns the seconds that a chip needs at least by its peaks."""
    return max(
      self.flops / chip.flops, (self.moved or self.others) / chip.bandwidth
    )


def devices(topology: str) -> Sequence[Any]:
  """Returns the devices of 'v5e:4x8', 'h100:2x8' or 'cpu:8', for example.

  Raises:
    ConfigError: for an unknown topology, or without its compiler.
  """
  kind, _, size = topology.partition(':')
  if kind == 'cpu':
    if not size.isdecimal() or not 0 < int(size) <= len(jax.devices('cpu')):
      raise errors.ConfigError(
        f'{size or "no number"} of {len(jax.devices("cpu"))} CPU devices',
        '--topology',
        'set JAX_NUM_CPU_DEVICES to the number',
      )
    return jax.devices('cpu')[: int(size)]
  # The compiler would ask a server of the cloud for the pod that it runs on.
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  from jax.experimental import topologies

  given: dict[str, Any] = {'platform': 'tpu', 'topology_name': topology}
  extra = 'tpu'
  if kind in GPUS:
    given, extra = _of_gpus(GPUS[kind], size), 'cuda12'
  try:
    found = topologies.get_topology_desc(**given)
  except Exception as error:  # of the compiler, or a missing module
    text = str(error).splitlines()[0]
    raise errors.ConfigError(
      f'no topology {topology!r}: {text}',
      '--topology',
      f"pip install 'fedreid_jax[{extra}]', and give v5e:2x4 or h100:8 for "
      'example',
    ) from error
  return found.devices


def _of_gpus(gpu: Gpu, size: str) -> dict[str, Any]:
  """Returns the arguments of a topology of 'HOSTS x GPUS' or 'GPUS'."""
  hosts, _, each = size.rpartition('x')
  # Parts of the network, hosts of a part, and GPUs of a host.
  shape = f'{hosts or 1}x1x{each}'
  fields = {
    **{'threads_per_block_limit': 1024, 'threads_per_warp': 32},
    **{'shared_memory_per_block': 49152, 'threads_per_core_limit': 2048},
    **{'block_dim_limit_x': 2**31 - 1, 'block_dim_limit_y': 65535},
    **{'block_dim_limit_z': 65535, 'registers_per_core_limit': 65536},
    'registers_per_block_limit': 65536,
    'fpus_per_core': 64 if gpu.major == 8 else 128,
    'shared_memory_per_core': gpu.shared,
    'shared_memory_per_block_optin': gpu.shared - 1024,
    'core_count': gpu.cores,
    'memory_bandwidth': int(gpu.chip.bandwidth),
    'l2_cache_size': gpu.cache,
    'clock_rate_ghz': gpu.ghz,
    'device_memory_size': int(gpu.chip.memory),
  }
  lines = ' '.join(f'{name}: {value}' for name, value in fields.items())
  target = (
    f'gpu_device_info {{ {lines} cuda_compute_capability {{ major: '
    f'{gpu.major} }} }} platform_name: "CUDA" dnn_version_info {{ major: 9 '
    f'minor: 8 }} device_description_str: "{gpu.kind}"'
  )
  return {
    'platform': 'cuda',
    'topology_name': shape,
    'topology': shape,
    'target_config': target,
  }


def described(config: Config) -> Federation:
  """Returns a federation with the sizes of its data sets, without images.

  Raises:
    ConfigError: for a data set without published sizes.
  """
  sources = sorted(config.data.sources)
  domains = [_described(spec, 'data.sources', LEARN) for spec in sources]
  clients = load.divided(config.data, domains)
  found = load.without_images(config.data)._replace(clients=clients)
  if not config.data.public:
    return found
  public = _described(config.data.public, 'data.public')
  # One value with the shape of all images: a pod that is not there reads none.
  shape = len(public.identities), *found.image_shape
  images = np.broadcast_to(np.uint8(0), shape)
  return found._replace(public=public._replace(images=lambda: images))


def _described(
  spec: str, field: str, splits: Sequence[str] | None = None
) -> Images:
  """Describes the images of some splits of a data set, all of them if None."""
  dataset, options = registry.parse(spec)
  sizes = dataset.expected(options)
  counts = [sizes[one] for one in splits or sizes if one in sizes]
  identities = max((one.identities or 0 for one in counts), default=0)
  if not identities:
    raise errors.ConfigError(
      f'{spec} has no published sizes',
      field,
      'give --config.data.root, or other data sets',
    )
  images = sum(c.images or IMAGES * (c.identities or 0) for c in counts)
  rows = np.arange(images, dtype=np.int32)
  shot = rows // identities
  return Images(
    spec,
    _no_images,
    rows % identities,
    shot % max(one.cameras or 1 for one in counts),
    # Every second image; published sizes do not tell the modalities apart.
    shot % 2 if dataset.infrared else np.zeros_like(rows),
  )


def _no_images() -> Any:
  raise AssertionError('a program is compiled without images')


def programs(
  config: Config, topology: str
) -> tuple[list[Program], costs.Costs, Any]:
  """Returns the figures of the programs of a round, its costs and a device.

  Raises:
    ConfigError: as `devices` and `described`.
  """
  made, cost, device = compiled(config, topology)
  return [_program(name, one) for name, one in made.items()], cost, device


def compiled(
  config: Config, topology: str
) -> tuple[dict[str, jax.stages.Compiled], costs.Costs, Any]:
  """Compiles a round; returns its programs, its costs and a device.

  Raises:
    ConfigError: as `devices` and `described`.
  """
  found = devices(topology)
  if config.data.source == 'datasets' and not config.data.root:
    federation = described(config)
  else:
    federation = load.load(
      config.data,
      options=build.arguments(config, config.data.source),
      held_out=config.evaluation.validation,
    )
  columns = max(c.num_identities for c in federation.clients)
  kind = networks.dtype(config.model.dtype, found[0].platform)
  config = replace(config, model=replace(config.model, dtype=kind))
  chip = CHIPS.get(found[0].device_kind)
  if chip and not config.execution.image_budget_mb:
    share = chip.memory / budget.IMAGES
    budget_mb = share / 2**20
    config = replace(
      config, execution=replace(config.execution, image_budget_mb=budget_mb)
    )
  model = build.network(config, columns, federation.image_shape)
  # As in a run, which uses all devices of several hosts.
  hosts = len({device.process_index for device in found})
  number = len(found) if hosts > 1 else len(federation.clients)
  mesh = placement.make_mesh(min(len(found), number), found)
  rounds = engine.make_rounds(
    config,
    federation,
    model,
    load_components(config),
    augment.make(config.augment, federation.mean, federation.std),
    mesh,
  )
  variables = jax.eval_shape(model.init, jax.random.key(config.seed))
  server, store = rounds.init(variables)
  made, cost = ahead.compiled(rounds, server, store)
  return made.compiled, cost, found[0]


def _program(name: str, one: Any) -> Program:
  memory = costs.of_memory(one)
  stats, counted = one.memory_analysis(), one.cost_analysis() or {}
  text = one.as_text()
  found: tuple[float, float] = 0.0, counted.get('bytes accessed', 0.0)
  if _ON_CHIP in text:
    found = moved(text)
  return Program(
    name,
    memory or costs.Memory(0, 0, 0),
    getattr(stats, 'generated_code_size_in_bytes', 0),
    counted.get('flops', 0.0),
    *found,
    counted.get('optimal_seconds', 0.0),
    collectives(text),
  )


def moved(text: str) -> tuple[int, int]:
  """Returns the bytes that a program reads from and writes to large memory.

  The first number is of a body of the loop over local steps, the second of the
  other operations.

  The compiler's figure for a TPU also has the bytes of arrays in the memory on
  the chip, where most activations of a small batch are, and counts a copy
  between the two at both ends. An array has the bytes of whole tiles here: 64
  channels take the 128 places of a tile of a TPU. An update of a part of an
  array counts as the whole array, so that the result is an upper bound.
  """
  # Operations inside a fusion move nothing themselves.
  inner = {*_INNER.findall(text)}
  size: Counter[str] = Counter()
  scopes: dict[str, list[bool]] = {}
  outer = ''
  held: dict[str, int] = {}  # by operation: bytes of its result
  for line in text.splitlines():
    if head := _COMPUTATION.match(line):
      outer = '' if head[1] in inner else head[1]
    elif outer and (found := _OPERATION.match(line)):
      name, shape, kind, rest = found.groups()
      held[name] = _in_memory(shape)
      used = {*_NAME.findall(rest.partition('), ')[0])}
      read = [held.get(x, 0) for x in used]
      # A gather reads as many rows of its largest operand as it returns.
      if kind in _GATHERS or 'kind=kCustom' in rest:
        written = sum(size for size, _ in _arrays(shape, padded=True))
        read = [min(size, written) for size in read]
      size[outer] += _moved_by(kind, shape, held[name] + sum(read))
      if scope := _SCOPE.search(rest):
        scopes.setdefault(outer, []).append(f'/{STEP}/' in scope[1])
  # What does not change is moved out of a loop, with its scope.
  steps = [one for one, found in scopes.items() if np.mean(found) > 0.5]
  inside = sum(size[one] for one in steps)
  return inside, sum(size.values()) - inside


def _moved_by(kind: str, shape: str, touched: int) -> int:
  if kind in _VIEWS or kind.endswith('-done'):
    return 0
  if kind.endswith('-start'):
    # A copy or slice; the two arrays are its ends, in either order.
    ends = _arrays(shape, padded=True)[:2]
    outside = sum(not on_chip for _, on_chip in ends)
    return outside * min((size for size, _ in ends), default=0)
  return touched


def _in_memory(shape: str) -> int:
  arrays = _arrays(shape, padded=True)
  return sum(size for size, on_chip in arrays if not on_chip)


def collectives(text: str) -> dict[str, tuple[int, int]]:
  """Returns (number, bytes) of the collectives of a program by kind."""
  number: Counter[str] = Counter()
  size: Counter[str] = Counter()
  for found in _CALL.finditer(text):
    number[found['kind']] += 1
    size[found['kind']] += sum(size for size, _ in _arrays(found['shape']))
  return {kind: (number[kind], size[kind]) for kind in number}


def _arrays(text: str, padded: bool = False) -> list[tuple[int, bool]]:
  """Returns (bytes, whether it is in a memory on the chip) of each array.

  Args:
    padded: whether the last tiles of an array count as full.
  """
  found: list[tuple[int, bool]] = []
  for kind, shape, layout in _ARRAY.findall(text):
    bits = _BITS.search(kind)
    width = int(bits[0]) // 8 if bits else 1
    sizes = [int(x) for x in shape.split(',') if x]
    if padded and (tiled := _TILED.match(layout)):
      axes, tile = ([int(x) for x in one.split(',')] for one in tiled.groups())
      for axis, places in zip(axes, reversed(tile), strict=False):
        sizes[axis] += -sizes[axis] % places
    found.append((width * int(np.prod(sizes)), _ON_CHIP in layout))
  return found
