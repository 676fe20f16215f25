"""Three sites in one process give the results of the simulation."""

import tomllib

import jax
import numpy as np
import pytest
import toy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.apps.sites import (
  codec,
  federated,
  remote,
  terms,
  worker,
)
from fedreid_jax.apps.sites.terms import Members
from fedreid_jax.config import load, validation
from fedreid_jax.training import build


def test_the_settings_of_a_run_are_read_again_and_restart_it_once(tmp_path):
  config = fr.load_config('dfh:smoke', rounds=5)
  wanted = federated.Wanted(3, round_s=60.0, min_sites=2)
  folder = federated.write(config, tmp_path / 'a "run"', wanted, True)
  project = tomllib.loads((folder / 'pyproject.toml').read_text())
  app = project['tool']['flwr']['app']
  path = tmp_path / 'a "run"' / federated.FILE
  assert app['config'] == {federated.SETTINGS: str(path)}
  assert {path.name for path in folder.iterdir()} == {'pyproject.toml'}
  for restart in (True, False):
    found, sites, again = federated.take(path)
    assert load.to_json(found) == load.to_json(config)
    assert (sites, again) == (wanted, restart)


def checked(*recipe):
  return validation.validate(fr.load_config(*recipe))


@pytest.mark.parametrize(
  'changes',
  [
    {'data.public': 'park'},
    {'start_from': 'runs/other'},
    {'evaluation.validation': 0.2},
    {'evaluation.batch_stats': 'source'},
    {'execution.debug': True},
  ],
)
def test_a_coordinator_has_no_images_of_the_sites(changes):
  config = checked('fedpav:smoke', changes)
  (field,) = changes
  with pytest.raises(errors.ConfigError, match='at real sites') as caught:
    federated.check(config)
  assert caught.value.where == field


def test_a_simulation_of_secure_aggregation_is_refused():
  with pytest.raises(errors.ConfigError, match='is simulated only'):
    federated.check(checked('secagg:smoke'))


@pytest.mark.parametrize(
  'recipe, changes, message',
  [
    ('dp_fedavg', {}, "guarantee of 'dp_fedavg'.*remove 'dp_fedavg'$"),
    ('dpsgd', {}, "guarantee of 'dpsgd'.*remove 'dpsgd'$"),
    ('dfh_dp', {}, "guarantee of 'dpsgd'.*remove 'dpsgd'$"),
    (
      'dfh',
      {'dfh.clip': 1.0, 'dfh.noise': 2.0},
      "guarantee of 'dfh'.*remove 'dfh', or set dfh.noise to 0$",
    ),
  ],
)
def test_sites_could_remove_the_noise_of_a_guarantee(recipe, changes, message):
  config = checked(f'{recipe}:smoke', changes)
  with pytest.raises(errors.ConfigError, match=message) as caught:
    federated.check(config)
  assert 'at real sites: its noise follows from the seed' in str(caught.value)
  assert caught.value.where == 'components'


def test_noise_without_a_guarantee_is_not_refused():
  changes = {'components': ('fedpav', 'noise')}
  federated.check(checked('fedpav:smoke', changes))


# Sizes of one number of batches: the sites have one program to compile.
SIZES = {'ash': 9, 'birch': 12, 'cedar': 11}
WANTED = federated.Wanted(3, wait_s=0.0)


class Line:
  """A channel to workers of this process; `away` do not answer."""

  def __init__(self, workers):
    self.workers, self.away, self.bend = dict(workers), set(), None
    self.said = []

  def nodes(self):
    here = [node for node in self.workers if node not in self.away]
    return {node: f'key {node}' for node in here}

  def ask(self, kind, messages, timeout):
    for node, message in messages:
      reply = self.workers[node].answer(message)
      bent = self.bend and kind != codec.HELLO
      yield node, self.bend(node, reply) if bent else reply


def clients():
  return tuple(toy.toy_client(name, size) for name, size in SIZES.items())


def configuration(components):
  config = toy.replaced(
    toy.toy_config(),
    {
      'components': components,
      'rounds': 4,
      'checkpoint_every': 1,
      'execution.devices': 1,
    },
  )
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
  return setup.rounds, *setup.rounds.init(setup.variables)


def rounds(executor, server, states, numbers):
  logs = []
  for number in numbers:
    server, log = executor.round(server, states, number)
    logs.append(log)
  return server, logs


def simulated(config, num, left_out=()):
  """Returns server and logs of a simulation."""
  setup = build.assemble(config, toy.toy_federation(clients()))
  server, states = setup.rounds.init(setup.variables)
  server, log = setup.rounds.prepare(server, states)
  return *rounds(setup.rounds, server, states, range(num)), log


def check_equal(components, folder, check):
  config = configuration(components)
  executor, server, states = coordinate(config, start(config, folder))
  server, prepared = executor.prepare(server, states)
  expected, logs, log = simulated(config, 2)
  assert prepared == log
  server, found = rounds(executor, server, states, range(2))
  check(jax.device_get(server), jax.device_get(expected))
  for mine, theirs in zip(found, logs, strict=True):
    assert mine.keys() == theirs.keys()
    check(mine, theirs)


@pytest.mark.exact
def test_three_sites_have_the_bits_of_the_simulation(tmp_path):
  check_equal(('fedpav', 'dfh', 'cdw'), tmp_path, toy.assert_equal_trees)


@pytest.mark.slow
def test_messages_of_the_server_change_results_by_roundings(tmp_path):
  # The simulation fuses the message of the server into the program of a client.
  check_equal(
    ('fedpav', 'scaffold'),
    tmp_path,
    lambda a, b: toy.assert_close_trees(a, b, 1e-5),
  )


@pytest.mark.slow
def test_a_site_leaves_and_comes_back(tmp_path):
  config = configuration(('fedpav', 'cdw'))
  line = start(config, tmp_path)
  executor, server, states = coordinate(config, line)
  one, expected, _ = [], *simulated(config, 2)[::2]
  server, _ = rounds(executor, server, states, range(2))
  toy.assert_close_trees(jax.device_get(server), jax.device_get(expected), 1e-5)
  before = jax.device_get(server)

  # Without birch the round goes on, and its private state does not.
  line.away.add(11)
  server, (log,) = rounds(executor, server, states, [2])
  assert log['clients'].tolist() == [0, 2]
  assert log['valid'].all() and log['weights'].sum() == pytest.approx(1)
  assert states.stacked().states[remote.KEPT].tolist() == [3, 2, 3]
  assert 'site birch did not answer' in line.said
  without = jax.device_get(server)

  # A worker that was started again reads its state from the disk.
  line.away.clear()
  one = clients()[1]
  line.workers[11] = worker.Worker(
    config, toy.toy_federation((one,)), tmp_path / 'birch'
  )
  server, (log,) = rounds(executor, server, states, [3])
  assert log['clients'].tolist() == [0, 1, 2]
  assert states.stacked().states[remote.KEPT].tolist() == [4, 4, 4]

  # A coordinator that resumes after two rounds repeats them with the same
  # private states, and so with the same bits.
  line.away.add(11)
  rows = states.stacked()
  back = rows.replace(states={remote.KEPT: np.full(3, 2, np.int32)})
  states.write(range(3), back, np.ones(3, bool))
  server, _ = rounds(executor, executor.put_server(before), states, [2])
  toy.assert_equal_trees(jax.device_get(server), without)

  # A reply of another model, of damaged bytes, or of an error is left out.
  line.away.clear()
  line.bend = Bent(codec.TRAIN)
  server, (log,) = rounds(executor, server, states, [3])
  assert log['clients'].tolist() == [0]
  told = ' '.join(line.said)
  assert 'site birch is left out' in told and 'num_steps is float32[1]' in told
  assert 'site cedar is left out' in told and 'cannot be read' in told
  line.away.add(10)
  with pytest.raises(errors.ResourceError, match='0 of 1 site answered'):
    rounds(executor, server, states, [4])


class Bent:
  """Bends the replies of nodes 11 and 12."""

  def __init__(self, kind):
    self.kind = kind

  def __call__(self, node, data):
    if node == 12:
      return data[: len(data) // 2]
    if node == 10:
      return data
    message = codec.unpack(data, '')
    arrays = message.arrays | {'num_steps': np.ones(1, np.float32)}
    return codec.pack(message.kind, message.fields, arrays)
