"""Checks whether a run can fit in memory, before any of it is allocated.

Without this check, a batch or plan that cannot fit ends in a failed allocation
or, with overcommitted memory, in a process that the system kills without a
message. The needs are lower bounds and the limit is all of the memory, so that
a run that can fit is never refused.
"""

import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.config.configuration import Config

# Operations whose results a step keeps for its backward pass.
_KEPT = ('conv_general_dilated', 'dot_general')
IMAGES = 4  # devices also hold models, activations and uploads
_CGROUPS = (
  '/sys/fs/cgroup/memory.max',
  '/sys/fs/cgroup/memory/memory.limit_in_bytes',
)


class Cost(NamedTuple):
  """Bytes of a forward pass, of one image."""

  image: int  # as float32
  kept: int  # results of convolutions and products
  largest: int  # of these results


def host_memory() -> int:
  """Returns the largest number of bytes that this process can use."""
  limits = [os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')]
  space = resource.getrlimit(resource.RLIMIT_AS)[0]
  if space != resource.RLIM_INFINITY:
    limits.append(space)
  for path in map(Path, _CGROUPS):
    if path.is_file() and path.read_text().strip().isdecimal():
      limits.append(int(path.read_text()))
  return min(limits)


def device_memory() -> int:
  """Returns the bytes of a device, or of the host if it has no own memory."""
  stats = jax.local_devices()[0].memory_stats()
  return (stats or {}).get('bytes_limit') or host_memory()


def of_images() -> int:
  """The bytes of a device that images may take.

  They are a quarter of the memory of the device, or of its share of the memory
  of the host if that is less.
  """
  # Devices of CPU cores divide the memory of the host.
  share = host_memory() // jax.local_device_count()
  return min(device_memory(), share) // IMAGES


def cost(
  forward: Callable[..., Any], variables, shape: tuple[int, ...]
) -> Cost:
  """The bytes of a forward pass, of one image.

  `forward` is `(variables, images [2, H, W, ch])`; it is traced, not run.
  """
  images = jax.ShapeDtypeStruct((2, *shape), np.float32)
  sizes = list(_sizes(jax.make_jaxpr(forward)(variables, images).jaxpr))
  return Cost(4 * math.prod(shape), sum(sizes) // 2, max(sizes, default=0) // 2)


def _sizes(jaxpr):
  for equation in jaxpr.eqns:
    if equation.primitive.name in _KEPT:
      yield sum(v.aval.size * v.aval.dtype.itemsize for v in equation.outvars)
    for inner in equation.params.values():
      inner = getattr(inner, 'jaxpr', inner)
      if hasattr(inner, 'eqns'):
        yield from _sizes(inner)


def check(
  config: Config,
  plan_shape: tuple[int, int],
  members: int,
  each: Cost,
  devices: int,
) -> None:
  """Refuses batches and plans, `(S, B)` of the longest round, above the limit.

  Raises:
    ResourceError: naming the field to lower.
  """
  steps, batch = plan_shape
  # Clients of a device that are not vmapped train one after another.
  lanes = min(config.execution.width or members, -(-members // devices))
  step = batch * lanes * (each.image + each.kept)
  _require('local.batch', batch, step, device_memory())
  _require_forward('evaluation.batch', config.evaluation.batch, each)
  field, length = 'local.epochs', config.local.epochs
  if config.local.steps:
    field, length = 'local.steps', config.local.steps
  plan = members * steps * batch * 5  # an int32 and a bool per image
  _require(field, length, plan, host_memory())


def check_data_pass(batch: int, each: Cost) -> None:
  """Refuses a `local.data_pass_batch` that exceeds the memory."""
  _require_forward('local.data_pass_batch', batch, each)


def _require_forward(field: str, batch: int, each: Cost) -> None:
  needed = batch * (each.image + each.largest)
  _require(field, batch, needed, device_memory())


def _require(field: str, value: int, needed: int, limit: int) -> None:
  if needed > limit:
    raise errors.ResourceError(
      f'{value} needs {needed / 1e9:.3g} GB or more of memory, there are '
      f'{limit / 1e9:.3g}',
      field,
      'lower it',
    )
