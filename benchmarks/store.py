"""Cost of the states of clients in files: writes, reads, disk, save, resume.

  python -m benchmarks.store [--clients=10000] [--cohort=64] [--kilobytes=16]
    [--rounds=50] [--every=5] [--folder=DIR]

Rounds draw a cohort, read its rows, add one and write them, as a round of
training does, with a server model of 1 MB beside them; a checkpoint is saved at
intervals. No network is trained. The reads are of clients that have trained.
The time beside the model is that of a save with states minus that of a save of
the server alone. States that do not fit in memory are measured in files only.
"""

import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging

from benchmarks import show
from fedreid_jax.core import types
from fedreid_jax.round import client_store, cohort
from fedreid_jax.training.files import checkpoint, client_states, steps

_CLIENTS = flags.DEFINE_integer('clients', 10_000, 'Number of clients.')
_COHORT = flags.DEFINE_integer('cohort', 64, 'Clients of a round.')
_KILOBYTES = flags.DEFINE_integer('kilobytes', 16, 'Size of a state, kB.')
_ROUNDS = flags.DEFINE_integer('rounds', 50, 'Measured rounds.')
_EVERY = flags.DEFINE_integer('every', 5, 'Rounds between checkpoints.')
_FOLDER = flags.DEFINE_string('folder', None, 'Existing folder of the files.')

MODEL = 2**18  # parameters of the server


def make_store() -> client_store.ClientStore:
  """Returns a store of states of the wanted size."""
  size = _KILOBYTES.value * 250
  shapes = types.ClientState(
    {'params/a/kernel': jax.ShapeDtypeStruct((size,), np.float32)}, {}, ()
  )

  def initial(client: int) -> types.ClientState:
    values = np.random.default_rng(client).random(size, np.float32)
    return types.ClientState({'params/a/kernel': values}, {}, ())

  return client_store.ClientStore(initial, shapes, _CLIENTS.value)


def make_server() -> types.ServerState:
  """Returns a server with a model of 1 MB."""
  model = {'params/b/kernel': np.zeros((1, MODEL), np.float32)}
  return types.ServerState(model, jnp.zeros(_CLIENTS.value, jnp.int32), {})


def seconds(function: Callable[..., Any], *args: Any) -> tuple[float, Any]:
  """Returns (seconds of a call, its result)."""
  start = time.perf_counter()
  result = function(*args)
  return time.perf_counter() - start, result


def measure(folder: pathlib.Path, rule: str) -> list[str]:
  """Runs rounds with states in memory or in files; returns a line."""
  workdir = folder / rule
  workdir.mkdir()
  names = [f'client{k}' for k in range(_CLIENTS.value)]
  saved = checkpoint.Checkpoints(workdir)
  states = client_states.ClientStates(make_store(), saved, names, rule)
  store, server = states.store, make_server()
  states.restore(None, server)
  fraction = _COHORT.value / _CLIENTS.value
  drawn = np.zeros(0, np.int32)
  reads: list[float] = []
  writes: list[float] = []
  saves = [seconds(states.save, 0, server, {'clients': names}, None)[0]]
  for number in range(_ROUNDS.value):
    drawn = cohort.sample_cohort(0, number, _CLIENTS.value, fraction)
    rows = jax.tree.map(lambda x: x + 1, store.read(drawn))
    valid = np.ones(len(drawn), bool)
    writes.append(seconds(store.write, drawn, rows, valid)[0])
    if (number + 1) % _EVERY.value == 0:
      host = {'clients': names}
      saves.append(seconds(states.save, number + 1, server, host, None)[0])
  trained = np.random.default_rng(0).permutation(store.written())
  for first in range(0, min(len(trained), 20 * len(drawn)), len(drawn)):
    part = trained[first : first + len(drawn)]
    reads.append(seconds(store.read, part)[0])
  root = workdir / steps.FOLDER
  used = sum(x.stat().st_size for x in root.rglob('*') if x.is_file())
  again = checkpoint.Checkpoints(workdir)
  begun = client_states.ClientStates(make_store(), again, names, rule)
  resumed, _ = seconds(lambda: begun.restore(again.latest(), make_server()))
  return [
    rule,
    f'{len(store.written()):,}',
    f'{np.median(writes) * 1e3:.1f}',
    f'{np.median(reads) * 1e3:.1f}',
    f'{used / 1e6:.0f}',
    f'{np.median(saves):.2f}',
    f'{np.median(saves) - alone(folder):.2f}',
    f'{resumed:.2f}',
  ]


def alone(folder: pathlib.Path) -> float:
  """Returns the median seconds of a save of the server alone."""
  workdir = folder / 'alone'
  shutil.rmtree(workdir, ignore_errors=True)
  workdir.mkdir()
  saved = checkpoint.Checkpoints(workdir)
  nothing = types.ClientState({}, {}, ())
  times = [
    seconds(saved.save, step, make_server(), nothing, {}, None)[0]
    for step in range(5)
  ]
  return float(np.median(times))


def main(argv: list[str]) -> None:
  """Measures both choices and prints a table."""
  del argv
  logging.set_verbosity(logging.ERROR)
  with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
    rules = ['disk', 'memory']
    if _CLIENTS.value * _KILOBYTES.value * 1000 > client_states.MEMORY_BYTES:
      rules.remove('memory')
    lines = [measure(pathlib.Path(folder), rule) for rule in rules]
  show.rows(
    f'{_CLIENTS.value:,} clients of {_KILOBYTES.value} kB, cohorts of '
    f'{_COHORT.value}, {_ROUNDS.value} rounds, a save every {_EVERY.value}',
    [
      *('states', 'trained', 'write ms', 'read ms', 'disk MB', 'save s'),
      *('beside the model s', 'resume s'),
    ],
    lines,
  )


if __name__ == '__main__':
  app.run(main)
