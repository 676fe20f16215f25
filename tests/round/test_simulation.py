import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.data import sampling
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  ServerHooks,
)
from fedreid_jax.round import ahead, compose


@pytest.fixture
def config(config):
  """With one layer."""
  config = toy.replaced(config, {'model.features': (4,)})
  return config


def components(names, **arguments):
  return compose.load(names, arguments, algorithms)


def result(config, clients, names, devices=1, rounds=2, **arguments):
  executor, variables, _ = toy.make_rounds(
    config, clients, components(names, **arguments), devices
  )
  return toy.run(executor, variables, rounds)


@pytest.mark.exact
def test_components_read_complete_uploads_and_models(config, clients):
  """The bits of a sum depend on how coordinates are divided."""

  def update(state, models, ctx):
    read = jax.tree.leaves((ctx.uploaded, models))
    total = sum(x[0].sum() for x in read)  # of one client and one group
    return state, {n: x + 1e-3 * total for n, x in models.items()}

  reader = Component(
    'reader',
    server=ServerHooks(update=update),
    properties=('needs_uploads',),
  )
  made, found = (*components(('fedpav',)), reader), []
  for devices in (1, 2):
    executor, variables, _ = toy.make_rounds(config, clients, made, devices)
    found.append(toy.run(executor, variables, 2))
  toy.assert_equal_trees(found[0][0], found[1][0])


@pytest.mark.slow
def test_placements_agree(config, clients):
  """Vectors of three clients have one that is filled in part."""
  config = toy.replaced(config, {'optim.lr': 0.005})
  names, mild = ('fedpav', 'dfh', 'scaffold'), {'dfh': {'lam': 1.0}}
  one = result(config, clients, names, rounds=1, **mild)
  config = toy.replaced(config, {'execution.deterministic': False})
  for width, devices in ((3, 1), (0, 2), (1, 8)):
    config = toy.replaced(config, {'execution.width': width})
    other = result(config, clients, names, devices, rounds=1, **mild)
    toy.assert_close_trees(one[0], other[0], 1e-5)
    toy.assert_close_trees(one[1], other[1], 1e-5)


def test_one_trace_with_changing_cohorts_and_ragged_clients(config, clients):
  config = toy.replaced(config, {'fraction': 0.5})
  traces = []
  executor, variables, _ = toy.make_rounds(
    config, clients, components(('fedpav', 'dfh')), traces=traces
  )
  server, states = executor.init(variables)
  server, _ = executor.prepare(server, states)
  server, _ = executor.round(server, states, 0)
  first = len(traces)
  seen = set()
  for round_ in range(1, 5):
    server, log = executor.round(server, states, round_)
    seen.add(tuple(log['clients']))
  assert len(seen) > 1
  assert len(traces) == first


@pytest.mark.slow
@pytest.mark.parametrize('budget_mb', [0.0, 700 / 2**20])
def test_a_round_compiles_nothing_that_was_compiled_ahead(
  config, clients, budget_mb
):
  """The programs for shapes are those for the arrays that a round has."""
  config = toy.replaced(config, {'execution.image_budget_mb': budget_mb})
  executor, variables, _ = toy.make_rounds(
    config, clients, components(('fedpav', 'dfh')), 2
  )
  server, states = executor.init(variables)
  wait = ahead.start(executor, server, states)
  executor.simulated.read_images()
  server, _ = executor.prepare(server, states)  # gives away the first state
  wait()
  found = []

  def note(event, seconds, **fields):
    if 'backend_compile' in event:
      found.append(fields.get('fun_name'))

  jax.monitoring.register_event_duration_secs_listener(note)
  try:
    executor.round(server, states, 0)
  finally:
    jax.monitoring.unregister_event_duration_listener(note)
  assert not {'jit(run)', 'jit(aggregate)'} & {*found}


@pytest.mark.slow
def test_clients_out_of_the_cohort_keep_their_state(config, clients):
  config = toy.replaced(config, {'fraction': 0.5})
  executor, variables, _ = toy.make_rounds(
    config, clients, components(('fedpav',))
  )
  server, states = executor.init(variables)
  before = states.stacked()
  _, log = executor.round(server, states, 0)
  states = states.stacked()
  assert len(log['clients']) == 2
  kernel = 'params/classifier/kernel'
  for k in range(len(clients)):
    same = (states.personal[kernel][k] == before.personal[kernel][k]).all()
    assert same == (k not in log['clients'])


@pytest.mark.slow
def test_other_clients_do_not_depend_on_who_is_there(config, clients):
  """A client's own round is a function of its name, not of its place."""
  _, all_states, _ = result(config, clients, ('fedpav',), rounds=1)
  _, few_states, _ = result(config, clients[1:], ('fedpav',), rounds=1)
  assert config.optim.reset_each_round and all_states.opt_state == ()
  kernel = 'params/classifier/kernel'
  np.testing.assert_array_equal(
    all_states.personal[kernel][1:], few_states.personal[kernel]
  )


def test_a_client_that_is_not_finite_is_left_out(config, clients):
  def poisoned(variables, state, ctx):
    del variables, state
    bad = (ctx.task.index == 1) & (ctx.round == 1)
    return jax.numpy.where(bad, np.nan, 0.0) * ctx.outputs.logits.sum(), {}

  (fedpav,) = components(('fedpav',))
  poison = Component('poison', client=ClientHooks(loss=poisoned))
  executor, variables, _ = toy.make_rounds(config, clients, (fedpav, poison))
  server, states, logs = toy.run(executor, variables, 3)
  arrived = [log['valid'].tolist() for log in logs]
  assert arrived == [[True] * 4, [True, False, True, True], [True] * 4]
  assert logs[1]['weights'][1] == 0
  np.testing.assert_allclose(logs[1]['weights'].sum(), 1, rtol=1e-6)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(server))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(states))
  assert np.isfinite(logs[1]['metrics']['loss'])


@pytest.mark.slow
def test_a_client_whose_classifier_alone_breaks_is_left_out(config, clients):
  def poisoned(variables, state, ctx):
    del state
    bad = (ctx.task.index == 2) & (ctx.round == 0)
    kernel = variables['params/classifier/kernel']
    return jax.numpy.where(bad, np.inf, 0.0) * kernel.sum(), {}

  poison = Component('poison', client=ClientHooks(loss=poisoned))
  config = toy.replaced(config, {'local.steps': 1})
  executor, variables, _ = toy.make_rounds(
    config, clients, (*components(('fedpav',)), poison)
  )
  _, states, logs = toy.run(executor, variables, 2)
  assert logs[0]['valid'].tolist() == [True, True, False, True]
  assert logs[1]['valid'].all()
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(states))


@pytest.mark.slow
def test_leaves_that_travel_and_that_stay_are_all_there_are(config, clients):
  config = toy.replaced(config, {'optim.reset_each_round': False})
  executor, variables, _ = toy.make_rounds(
    config, clients[:1], components(('fedpav',))
  )
  server, states, _ = toy.run(executor, variables, 2)
  shared = {n: x[0] for n, x in server.shared.items()}
  own = {n: x[0] for n, x in states.opt_state.trace.items()}
  assert set(own) == {n for n in variables if n.startswith('params/')}
  assert set(shared) | set(states.personal) == set(variables)


@pytest.mark.slow
def test_a_round_begins_with_the_momentum_that_was_kept(config, clients):
  """Without a gradient the first step of round 2 is the momentum alone."""
  config = toy.replaced(
    config,
    {
      'optim.reset_each_round': False,
      'optim.weight_decay': 0.0,
      'optim.nesterov': False,
      'loss.identity': 0.0,
      'local.steps': 1,
    },
  )
  executor, variables, _ = toy.make_rounds(
    config, clients[:1], components(('fedpav',))
  )
  server, states = executor.init(variables)
  start = states.stacked()
  trace = start.opt_state.trace
  assert all(not x.any() for x in trace.values())
  for leaf in trace.values():
    leaf[:] = 2.0
  states.write([0], start, np.array([True]))
  before = {n: np.array(x) for n, x in server.shared.items()}
  server, _ = executor.round(server, states, 0)
  moved = config.optim.lr * config.optim.momentum * 2.0
  for name in trace.keys() & before.keys():
    np.testing.assert_allclose(
      server.shared[name], before[name] - moved, rtol=1e-5, atol=1e-6
    )
  for leaf in states.stacked().opt_state.trace.values():
    np.testing.assert_allclose(leaf, 2.0 * config.optim.momentum, rtol=1e-6)


@pytest.mark.slow
def test_padding_of_a_batch_never_matters(config, clients, monkeypatch):
  """What a padded row of a batch points at changes no bit."""
  config = toy.replaced(config, {'local.drop_last': False})
  ends, ordinary = [], sampling.make
  for row in (0, 4):

    def padded(*given, row=row):
      planner, *rest = ordinary(*given)

      def filled(round_, k):
        plan = planner(round_, k)
        assert not plan.valid[-1].all() or not len(clients[k].labels) % 4
        return plan._replace(rows=np.where(plan.valid, plan.rows, row))

      return planner._replace(plan=filled), *rest

    monkeypatch.setattr(sampling, 'make', padded)
    executor, variables, _ = toy.make_rounds(
      config, clients, components(('fedpav', 'dfh'))
    )
    ends.append(toy.run(executor, variables, 2))
  toy.assert_equal_trees(*[(e[0], e[1]) for e in ends])
