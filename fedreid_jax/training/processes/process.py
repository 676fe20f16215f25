"""Settings of JAX that a process makes before it trains."""

import os

import jax

from fedreid_jax.training.processes import compile_cache


def prepare_jax(cores: int) -> None:
  """Sets the compile cache and the number of CPU devices.

  `JAX_NUM_CPU_DEVICES` overrides the number.

  Args:
    cores: number of CPU devices.
  """
  compile_cache.ignore_errors()
  compile_cache.use()
  # The small operations of one client do not use all cores. One device per core
  # runs as many clients at a time, with the same bits.
  if 'JAX_NUM_CPU_DEVICES' not in os.environ:
    jax.config.update('jax_num_cpu_devices', cores)
