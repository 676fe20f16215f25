"""Uploads that come one after another, in any order."""

import itertools
import weakref

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax.algorithms import fedpav, robust
from fedreid_jax.core import prng, trees, types
from fedreid_jax.round import compiled, placement
from fedreid_jax.round.collect import Collector

CLIENTS = [4, 0, 2, 5]  # of six, in the order of sampling


def server():
  start = {n: x[None] for n, x in handmade.variables(0.5).items()}
  return types.ServerState(start, jnp.zeros(6, jnp.int32), {})


def uploads():
  """An upload of each client but client 5, by client."""
  rng = np.random.default_rng(0)
  shared = {n: rng.random((3, *x.shape)) for n, x in server().shared.items()}
  shared = {n: x[:, 0] for n, x in shared.items()}
  given = handmade.uploads(shared, sizes=[5, 9, 7], index=[0, 2, 4])
  return {k: trees.rows(given, i) for i, k in enumerate((0, 2, 4))}


def result(made, order, devices=1):
  """The models and the log of a round whose uploads come in an order."""
  method = handmade.algorithm(made, exact=True)
  mesh = placement.make_mesh(devices)
  collected = Collector(method, 4, mesh).start(server(), CLIENTS, True)
  for client in order:
    collected.add(client, uploads()[client])
  run = compiled.of_server(method, mesh).aggregate
  public = np.zeros((0, 1, 1, 3), np.uint8)
  start = placement.put(
    server(), jax.NamedSharding(mesh, jax.sharding.PartitionSpec())
  )
  new, log = run(
    start, *collected.received(), np.int32(0), public, prng.data(0)
  )
  return jax.device_get((new.shared, log))


@pytest.mark.parametrize(
  'rule', [(), (robust.make(robust.Options(rule='median')),)]
)
@pytest.mark.parametrize('devices', [1, 2])
def test_the_order_and_the_devices_change_no_bit(rule, devices):
  made = (fedpav.make(), *rule)
  expected = result(made, [0, 2, 4])
  models, log = result(made, [4, 0, 2], devices)
  toy.assert_equal_trees(models, expected[0])
  np.testing.assert_array_equal(log['valid'][:4], [True] * 3 + [False])
  np.testing.assert_array_equal(log['weights'], expected[1]['weights'])
  if not rule:
    sent, sizes = uploads(), {0: 5, 2: 9, 4: 7}
    mean = sum(
      size * sent[k].shared[handmade.KERNEL] for k, size in sizes.items()
    )
    np.testing.assert_allclose(models[handmade.KERNEL][0], mean / 21, rtol=1e-6)


@pytest.mark.parametrize(
  'exact, order, held',
  [
    (True, [4, 0, 2], [0, 0, 0]),
    # They wait for client 0, which does not come.
    (False, [4, 5, 2], [0, 1, 2]),
  ],
)
def test_uploads_are_kept_only_while_they_wait(exact, order, held):
  method = handmade.algorithm((fedpav.make(),), exact=exact)
  mesh = placement.make_mesh(1)
  collected = Collector(method, 4, mesh).start(server(), CLIENTS, True)
  alive, found = [], []
  for client in order:
    upload = jax.tree.map(np.array, uploads().get(client, uploads()[4]))
    alive.append(weakref.ref(upload.shared[handmade.KERNEL]))
    collected.add(client, upload)
    del upload
    # JAX keeps the arguments of its last call.
    found.append(sum(one() is not None for one in alive[:-1]))
  assert found == held
  collected.received()


def test_float32_sums_do_not_depend_on_who_is_first():
  method = handmade.algorithm((fedpav.make(),), exact=False)
  mesh = placement.make_mesh(1)
  collector, found = Collector(method, 4, mesh), []
  for order in itertools.permutations([0, 2, 4]):
    collected = collector.start(server(), CLIENTS, True)
    for client in order:
      collected.add(client, uploads()[client])
    found.append(jax.device_get(collected.received()))
  for one in found[1:]:
    toy.assert_equal_trees(one, found[0])
