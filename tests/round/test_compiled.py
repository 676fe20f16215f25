"""The memory of the server's part of a round on a device."""

import jax
import numpy as np
import pytest
import toy
from jax.sharding import PartitionSpec as P

from fedreid_jax import algorithms
from fedreid_jax.round import compiled, compose
from fedreid_jax.round.devices import placement

CLIENTS, DEVICES = 16, 4


def memory(names):
  """Returns (bytes of a stacked round on a device, of one upload)."""
  clients = tuple(toy.toy_client(f'c{k:02}', 4) for k in range(CLIENTS))
  config = toy.toy_config()
  config.model.features = (32, 64)
  executor, variables, _ = toy.make_executor(
    config, clients, compose.load(names, {}, algorithms), DEVICES
  )
  server, store = executor.init(variables)
  _, uploads, _ = executor._first_round(server, store)

  def split(leaf):
    return jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=executor._split
    )

  ranks = jax.ShapeDtypeStruct((CLIENTS,), np.int32)
  program = executor._run.aggregate.lower(
    server,
    jax.tree.map(split, uploads),
    split(ranks),
    np.int32(0),
    executor._public,
    executor._seed,
  ).compile()
  found = program.memory_analysis().temp_size_in_bytes
  return found, sum(x.nbytes for x in jax.tree.leaves(server.shared))


@pytest.mark.slow
def test_a_device_has_a_part_of_the_uploads_unless_a_rule_reads_them():
  """Two arrays of `K / D` models, or of `K`: received, and in order."""
  part, model = memory(('fedavg',))
  assert part < 1.2 * 2 * CLIENTS / DEVICES * model
  complete, model = memory(('fedavg', 'fedatt'))
  assert complete > 2 * CLIENTS * model


def test_parameters_are_divided_along_their_longest_axis():
  mesh = placement.make_mesh(4)
  shapes = {'kernel': (4, 3, 3, 8, 16), 'wide': (4, 32, 16), 'odd': (4, 3, 6)}
  shapes['one'] = (4, 4)  # one number on each device
  leaves = {n: jax.ShapeDtypeStruct(s, np.float32) for n, s in shapes.items()}
  found = compiled._by_coordinates(mesh, leaves)
  assert {name: sharding.spec for name, sharding in found.items()} == {
    'kernel': P(None, None, None, None, 'clients'),
    'wide': P(None, 'clients'),
    'odd': P(),
    'one': P(),
  }
