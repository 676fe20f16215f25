"""Command-line doors: `python -m launchers.NAME`."""

import sys

from fedreid_jax import signals

if sys.argv[0] == '-m':  # Python still looks for the door, and so imports this
  signals.listen()
