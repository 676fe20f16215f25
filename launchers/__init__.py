"""Commands of a checkout: `python -m launchers.NAME`."""

import sys

from fedreid_jax.training.processes import signals

if sys.argv[0] == '-m':  # Python is still searching for the module to run
  signals.listen()
