"""Cells of a table, each measured in its own process."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def measure(
  module: str, cell: str, devices: int | str, arguments: Sequence[str]
) -> dict[str, Any]:
  """Measures a cell in its own process.

  Args:
    module: `python -m MODULE --cell=CELL` prints the figures as JSON in its
      last line.
    cell: which.
    devices: to simulate on a CPU.
    arguments: other arguments of the program.

  Returns:
    The figures, or the last line of an `error`.
  """
  found = subprocess.run(
    [sys.executable, '-m', module, *arguments, f'--cell={cell}'],
    env=os.environ | {'JAX_NUM_CPU_DEVICES': str(devices)},
    capture_output=True,
    text=True,
    check=False,
  )
  if found.returncode:
    return {'error': (found.stderr.strip().splitlines() or ['no output'])[-1]}
  return json.loads(found.stdout.splitlines()[-1])


def given() -> list[str]:
  """Returns the flags of this program."""
  return [text for text in sys.argv[1:] if text.startswith('--')]
