"""Three sites in one process give the results of the simulation."""

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.sites import codec, federated, terms, worker
from fedreid_jax.sites.members import Members
from fedreid_jax.training import build

NAMES = 'ash', 'birch', 'cedar'
WANTED = federated.Wanted(3, wait_s=0.0)


class Line:
  """A channel to workers of this process; `away` do not answer."""

  def __init__(self, workers):
    self.workers, self.away, self.bend = dict(workers), set(), None
    self.said = []

  def nodes(self):
    return [node for node in self.workers if node not in self.away]

  def ask(self, kind, messages, timeout):
    replies = {n: self.workers[n].answer(x) for n, x in messages.items()}
    if self.bend and kind != codec.HELLO:
      replies = {n: self.bend(n, data) for n, data in replies.items()}
    return replies


def clients():
  return tuple(toy.toy_client(name, toy.SIZES[name]) for name in NAMES)


def configuration(components):
  config = toy.toy_config()
  config.components, config.rounds = components, 4
  config.checkpoint_every = 1
  return config


def start(config, folder):
  """Returns a line of three sites, with private states below a folder."""
  return Line(
    (node, worker.Worker(config, toy.toy_federation((one,)), folder / one.name))
    for node, one in enumerate(clients(), start=10)
  )


def coordinate(config, line, **wanted):
  """Returns the executor of a coordinator and its states before round 0."""
  chosen = WANTED._replace(**wanted)
  members = Members(line, terms.agreed(config), line.said.append)
  found = members.gather(chosen.sites, chosen.wait_s)
  setup = federated.assemble(
    config, toy.toy_federation(()), members, found, chosen
  )
  return setup.executor, *setup.executor.init(setup.variables)


def rounds(executor, server, states, numbers):
  logs = []
  for number in numbers:
    server, log = executor.round(server, states, number)
    logs.append(log)
  return server, logs


def simulated(config, num, left_out=()):
  """Returns server and logs of a simulation."""
  setup = build.assemble(config, toy.toy_federation(clients()))
  server, states = setup.executor.init(setup.variables)
  server, log = setup.executor.prepare(server, states)
  return *rounds(setup.executor, server, states, range(num)), log


@pytest.mark.exact
@pytest.mark.parametrize(
  'components',
  [('fedpav', 'cdw'), ('fedpav', 'dfh'), ('fedpav', 'scaffold')],
  ids='+'.join,
)
def test_three_sites_have_the_bits_of_the_simulation(components, tmp_path):
  config = configuration(components)
  executor, server, states = coordinate(config, start(config, tmp_path))
  server, prepared = executor.prepare(server, states)
  expected, logs, log = simulated(config, 2)
  assert prepared == log
  server, found = rounds(executor, server, states, range(2))
  toy.assert_equal_trees(jax.device_get(server), jax.device_get(expected))
  for mine, theirs in zip(found, logs, strict=True):
    assert mine.keys() == theirs.keys()
    jax.tree.map(np.testing.assert_array_equal, mine, theirs)
