"""The cache of compiled programs that commands and the Python API share."""

import os
import warnings

import jax

from fedreid_jax.data import cache


def use() -> None:
  """Keeps compiled programs in the user's cache directory of this package.

  A cache directory that was chosen before, in `JAX_COMPILATION_CACHE_DIR` or in
  `jax.config`, is left as it is. Programs are kept however short their
  compilation was; no other setting of JAX is changed.
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
