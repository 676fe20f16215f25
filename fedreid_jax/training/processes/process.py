"""Settings of a process: cached programs, devices, log messages and turns."""

import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Iterator

import jax

from fedreid_jax.config.configuration import Config
from fedreid_jax.data import cache

_turn = threading.RLock()


def prepare_jax(cores: int) -> None:
  """Sets the cache of programs and the number of CPU devices, one for a core.

  `JAX_NUM_CPU_DEVICES` overrides the number.
  """
  ignore_errors()
  use_cache()
  # The small operations of one client do not use all cores. One device per core
  # runs as many clients at a time, with the same bits.
  if 'JAX_NUM_CPU_DEVICES' not in os.environ:
    jax.config.update('jax_num_cpu_devices', cores)


def use_cache() -> None:
  """Keeps compiled programs in the user's cache directory of this package.

  A directory that was chosen before, in `JAX_COMPILATION_CACHE_DIR` or in
  `jax.config`, stays. Programs are kept however short their compilation was.
  """
  if (
    'JAX_COMPILATION_CACHE_DIR' in os.environ
    or jax.config.jax_compilation_cache_dir  # pyright: ignore
  ):
    return
  ignore_errors()
  if 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS' not in os.environ:
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  jax.config.update('jax_compilation_cache_dir', str(cache.cache_dir() / 'xla'))


def ignore_errors() -> None:
  """Ignores the warnings of JAX about a cache that cannot be used."""
  # Such a cache costs time and changes no result, and JAX would print a line
  # for every program.
  warnings.filterwarnings('ignore', 'Error .*persistent compilation cache')


class _Filter(logging.Filter):
  """Drops warnings of Orbax while this package uses it, in any thread."""

  def __init__(self):
    super().__init__()
    self.users = 0
    self.lock = threading.Lock()

  def filter(self, record: logging.LogRecord) -> bool:
    of_orbax = 'orbax' in record.pathname
    return not (self.users and of_orbax and record.levelno < logging.ERROR)


_filter = _Filter()


@contextlib.contextmanager
def orbax_muted() -> Iterator[None]:
  """Drops the warnings of Orbax until the end of the block."""
  # Only then, because a caller may use Orbax as well and want its warnings.
  logger = logging.getLogger('absl')
  with _filter.lock:
    logger.addFilter(_filter)  # once, however often it is added
    _filter.users += 1
  try:
    yield
  finally:
    with _filter.lock:
      # Other threads may still be in such a block.
      _filter.users -= 1
      if not _filter.users:
        logger.removeFilter(_filter)


@contextlib.contextmanager
def turn(config: Config) -> Iterator[None]:
  """Waits for other threads' runs if this one uses several devices.

  Runs on one device do not wait. Programs are cached, and Orbax is muted.
  """
  use_cache()
  # Programs over several devices that two threads start at once may reach the
  # devices in different orders and then wait for each other forever.
  alone = 1 in (config.execution.devices, jax.device_count())
  with contextlib.nullcontext() if alone else _turn, orbax_muted():
    yield
