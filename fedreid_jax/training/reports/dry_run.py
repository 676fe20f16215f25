"""Forecast of the training, messages, memory and files of a run."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from fedreid_jax import errors
from fedreid_jax.config import parsing
from fedreid_jax.config.configuration import Config
from fedreid_jax.models import flops
from fedreid_jax.round import ahead
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.training import budget, build, starts, trackers
from fedreid_jax.training.files import checkpoint, client_states, run_files
from fedreid_jax.training.reports import report

ONE = {'images': 'image', 'identities': 'identity', 'cameras': 'camera'}


def lines(config: Config, workdir: Path) -> Iterator[str]:
  """Yields the lines that `fedreid train --dry_run` prints.

  Compiles the programs of a round; writes nothing but these programs, into the
  cache of JAX, the arrays of image files, and rendered images of a public
  domain. Images that a run would read later are not read.

  Raises:
    FedReIDError: as `loop.train` before it reads those images.
  """
  trackers.check(config.track)
  yield 'configuration, where it differs from the defaults:'
  for name, value in parsing.changed(config).items():
    yield f'  {name} = {value!r}'
  yield from starts.lines(config)
  setup = build.build(config)
  federation = setup.federation
  yield ''
  yield f'{errors.counted(len(federation.clients), "client")}:'
  for row in report.clients(federation.clients):
    numbers = (
      errors.counted(value, ONE.get(key, key), key)
      for key, value in row.items()
      if key != 'client'
    )
    yield f'  {row["client"]}: {", ".join(numbers)}'
  for target in federation.targets:
    number = errors.counted(len(target.images.identities), 'image')
    yield f'test on {target.name}: {number}'
  for notice in report.notices(setup):
    yield f'note: {notice}'
  server, store = setup.start()
  yield ''
  yield from _program(config, setup, server, store)
  yield from _files(config, setup, server, store, workdir)


def _program(
  config: Config, setup: build.Setup, server, store
) -> Iterator[str]:
  federation = setup.federation
  columns = max(c.num_identities for c in federation.clients)
  model = build.network(config, columns, federation.image_shape)
  cost = flops.count(model, federation.image_shape)
  yield (
    f'network: {cost.parameters:,} parameters, '
    f'{cost.multiply_adds / 1e6:.1f} million multiply-adds an image'
  )
  yield 'compiling the programs of a round'
  found = ahead.forecast(setup.rounds, server, store)
  for way in ('up', 'down'):
    sent = found.sent[way]
    parts = ', '.join(f'{_size(n)} {name}' for name, n in sent.items())
    yield f'a round sends {_size(sum(sent.values()))} {way} ({parts})'
  yield setup.rounds.uploads.describe()
  if setup.rounds.simulated:
    yield setup.rounds.simulated.describe_images()
  # A backward pass costs about two forward passes.
  work = 6 * cost.multiply_adds * found.images
  yield (
    f'a round trains {errors.counted(found.steps, "step")} of '
    f'{errors.counted(found.images, "image")}, about '
    f'{work / 1e9:.3g} billion floating-point operations'
  )
  if found.flops is not None:
    yield (
      f'XLA counts {found.flops / 1e9:.3g} billion in one step of a client'
    )
  if found.largest is not None:
    need = found.memory[found.largest]
    yield (
      f'a device needs {_size(sum(need))} of {_size(budget.device_memory())} '
      f'during the {found.largest}: {_size(need.arguments)} images, models '
      f'and states, {_size(need.results)} results, {_size(need.temporary)} '
      'activations, gradients and sums'
    )


def _files(
  config: Config, setup: build.Setup, server, store: ClientStore, workdir: Path
) -> Iterator[str]:
  shape = setup.federation.image_shape
  tests = sum(len(t.images.identities) for t in setup.federation.targets)
  trained = sum(c.num_images for c in setup.federation.clients)
  images = (trained + tests) * math.prod(shape)
  all_states = len(store) * store.row_bytes
  in_files = client_states.on_disk(config.execution.store, store)
  held = 0 if in_files else all_states
  yield (
    f'the host needs {_size(images + held)} of '
    f'{_size(budget.host_memory())} for images and states of clients, beside '
    'its programs'
  )
  if in_files:
    yield (
      f'states of clients are in files: {_size(store.row_bytes)} for each of '
      f'{errors.counted(len(store), "client")}, {_size(all_states)} if all of '
      'them train'
    )
  # The first seven are the files that `train` writes.
  files = [*run_files.WRITTEN[:7], *trackers.written(config.track)]
  if not setup.secret or config.privacy.secret == 'seed':
    files.remove(run_files.SECRET)
  if config.start_from and setup.frozen:
    files.append(run_files.FROZEN)
  yield (
    f'a run would write {workdir}: {", ".join(files)}, and '
    f'checkpoints of {_size(_bytes(server) + held)}, of which the last '
    f'{checkpoint.KEPT} and the best are kept'
  )


def _bytes(tree: Any) -> int:
  leaves = jax.tree.leaves(tree)
  return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _size(num_bytes: float) -> str:
  units = ['B', 'kB', 'MB', 'GB', 'TB']
  # 999.5 would be rounded to '1e+03'.
  while num_bytes >= 999.5 and len(units) > 1:
    num_bytes, units = num_bytes / 1000, units[1:]
  return f'{num_bytes:.3g} {units[0]}'
