"""The seed is an argument of every program, not a constant in it."""

import dataclasses

import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.round import compose

# DFH has a data pass before round 0.
BEFORE = ('end_untrained', 'receive')
ROUND = ('begin', 'train', 'measure', 'data_pass', 'end', 'aggregate')


def programs(config, clients, names):
  """Returns the text of the programs of a round by name."""
  executor, variables, _ = toy.make_rounds(
    config, clients, compose.load(names, {}, algorithms)
  )
  texts = {}

  def kept(name, run):
    def call(*args):
      texts[name] = run.lower(*args).as_text()
      return run(*args)

    return call

  def watched(functions):
    names = {*functions._fields} & {*BEFORE, *ROUND}
    return functions._replace(
      **{n: kept(n, getattr(functions, n)) for n in names}
    )

  local = executor.simulated.local
  run = watched(local.run)
  executor.simulated.local = dataclasses.replace(local, run=run)
  executor.on_server = watched(executor.on_server)
  server, _, _ = toy.run(executor, variables, 1)
  return texts, server.shared


@pytest.mark.slow
def test_another_seed_has_the_same_programs(config, clients):
  names = 'fedpav', 'dfh', 'kd', 'noise'
  config = toy.replaced(config, {'model.dropout': 0.5, 'model.features': (4,)})
  found = []
  for seed in (0, 1):
    config = toy.replaced(config, {'seed': seed})
    found.append(programs(config, clients, names))
  (one, first), (two, second) = found
  assert one == two and {'begin', 'train', 'end', 'aggregate'} <= one.keys()
  same = [bool((first[n] == second[n]).all()) for n in first]
  assert not all(same)
