"""Results on held-out persons reach the components that use them."""

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.algorithms import fedpav
from fedreid_jax.config import schema, validation
from fedreid_jax.data.validation import NAME
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  DataPass,
  ServerHooks,
)
from fedreid_jax.round import compose
from fedreid_jax.training import build
from fedreid_jax.training.reports import report


def _judge(state, metrics, done):
  return jnp.stack([metrics['mAP'], done.astype(jnp.float32)])


# Clients keep what the server has told them in the last round.
LISTENER = Component(
  'listener',
  client=ClientHooks(
    init=lambda key, variables: jnp.zeros(2),
    round_end=lambda state, ctx: (ctx.message, ()),
  ),
  server=ServerHooks(
    init=lambda ctx: jnp.zeros(2), message=lambda state: state, judge=_judge
  ),
)


def entry(target, model='global', **metrics):
  return {'target': target, 'model': model, 'metrics': metrics}


def test_only_held_out_persons_are_told():
  entries = [
    entry('mall', mAP=90.0, rank1=95.0),
    entry(f'{NAME}plaza', mAP=10.0, rank1=20.0, minutes=3),
    entry(f'{NAME}campus', mAP=30.0, rank1=40.0),
    entry(f'{NAME}campus', 'client:campus', mAP=99.0, rank1=99.0),
  ]
  assert report.held_out(entries) == {'mAP': 20.0, 'rank1': 30.0}
  assert report.held_out(entries[:1]) == {}
  # Models of clients alone.
  assert report.held_out(entries[3:])['mAP'] == 99.0


def test_a_method_without_the_hook_has_no_program_for_it():
  assert handmade.algorithm((fedpav.make(),)).judge is None


@pytest.mark.slow
def test_clients_hear_of_a_judgement_in_the_next_round(config, clients):
  config = toy.replaced(config, {'local.steps': 1})
  made, variables, _ = toy.make_rounds(
    config, clients[:2], (fedpav.make(), LISTENER)
  )
  server, store = made.init(variables)
  heard = []
  for done in range(2):
    server = made.judge(server, done, {'mAP': 5.0 + done, 'rank1': 1.0})
    server, _ = made.round(server, store, done)
    heard.append(store.stacked().states['listener'])
  np.testing.assert_array_equal(heard, [[[5, 0]] * 2, [[6, 1]] * 2])
  # Nothing else of the server changes.
  judged = made.judge(server, 2, {'mAP': 1.0})
  toy.assert_equal_trees(judged.shared, server.shared)


def test_a_judge_needs_held_out_persons(config, clients, monkeypatch):
  given = schema.default()
  monkeypatch.setattr(
    validation, 'load_components', lambda _: (fedpav.make(), LISTENER)
  )
  with pytest.raises(errors.ConfigError, match='by which listener judges'):
    validation.validate(given)
  given.evaluation.validation = 0.1
  validation.validate(given)
  federation = toy.toy_federation(clients)
  build.check_judged((fedpav.make(),), federation)
  with pytest.raises(errors.DataError, match='listener judges models'):
    build.check_judged((LISTENER,), federation)
  (target,) = federation.targets
  held_out = federation._replace(targets=(target._replace(name=f'{NAME}ash'),))
  build.check_judged((LISTENER,), held_out)


# Counts the images of data passes: once, or in every round.
def _counter(every_round):
  return Component(
    'counter',
    client=ClientHooks(
      init=lambda key, variables: jnp.zeros(2),
      data_pass=DataPass(
        lambda outputs, ctx: jnp.float32(0),
        lambda seen, outputs, batch: seen + batch.valid.sum(),
        every_round,
      ),
      round_end=lambda state, ctx: (
        state.at[int(ctx.trained)].set(ctx.data_pass),
        (),
      ),
    ),
    properties=('before_first_round',),
  )


@pytest.mark.parametrize('every_round', [True, False])
def test_a_data_pass_may_run_once(every_round):
  parts = fedpav.make(), _counter(every_round)
  program = handmade.algorithm(parts).program
  assert program.has_data_pass and program.runs_data_pass(False)
  assert program.runs_data_pass(True) == every_round


def test_a_data_pass_that_would_never_run_is_refused():
  never = _counter(False)._replace(properties=())
  with pytest.raises(errors.ConfigError, match="data pass of 'counter' runs"):
    compose.check((fedpav.make(), never))
  compose.check((fedpav.make(), _counter(True)._replace(properties=())))


@pytest.mark.slow
@pytest.mark.parametrize('debug', [False, True])
def test_images_of_a_pass_that_runs_once(config, clients, debug):
  config = toy.replaced(config, {'execution.debug': debug, 'local.steps': 1})
  made, variables, _ = toy.make_rounds(
    config, clients[:2], (fedpav.make(), _counter(False))
  )
  _, store, _ = toy.run(made, variables, 1)
  images = [[c.num_images, 0] for c in clients[:2]]
  np.testing.assert_array_equal(store.states['counter'], images)
  jax.clear_caches()
