"""Rates that are chosen on held-out persons, and the plans that have them."""

import dataclasses
import itertools
import json
import math

import claim_runs
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.apps.papers import planning, rates, runner, study
from fedreid_jax.apps.papers.tables.declare import Arm, route

HELD_OUT = 'evaluation.validation=0.25'
CLAIM = dataclasses.replace(
  claim_runs.CLAIM,
  arm=Arm(f'dfh:smoke,{HELD_OUT}'),
  base=Arm(f'dfh:smoke,components=("fedpav",),{HELD_OUT}'),
)
GRID = planning.Grid(('0.02', '0.05', '0.1'))


def save(cell, held_out=None, target=0.5):
  """Writes the files of an ended run; without a figure it has diverged."""
  if held_out is None:
    cell.workdir.mkdir(parents=True, exist_ok=True)
    error = errors.DivergedError(
      'no finite update', 'round 1', 'lower the rate'
    )
    (cell.workdir / runner.ERROR).write_text(error.line())
    return
  claim_runs.save(
    cell,
    global__mall=np.full(4, target),
    global__park=np.full(9, target),
    # Persons that choose a rate are no target of a claim.
    **{'global__validation:plaza': np.full(4, held_out / 100)},
  )
  own = [
    _entry(f'validation:{name}', 2, held_out + more)
    for name, more in (('plaza', -10.0), ('campus', 10.0))
  ]
  # A better figure of an earlier round, and a better target, choose nothing.
  own += [
    _entry('validation:plaza', 1, 99.0),
    _entry('mall', 2, 100 - held_out),
  ]
  done = {'rounds': cell.config.rounds, 'summary': [], 'evaluation': own}
  (cell.workdir / 'results.json').write_text(json.dumps(done))


def _entry(target, round_, value):
  metrics = {'mAP': value}
  return {
    'target': target,
    'model': 'global',
    'round': round_,
    'metrics': metrics,
  }


@pytest.fixture
def plan(tmp_path):
  return lambda seeds=(0, 1): planning.plan([CLAIM], seeds, tmp_path, (), GRID)


def finish(planned, figures):
  """Ends the searches with figures by part of the recipe and rate."""
  for search in planned.searches:
    side = 'base' if 'fedpav' in search.recipe else 'arm'
    for rate, (cell,) in search.by_rate.items():
      save(cell, figures[side][rate])


FIGURES = {
  'arm': {'0.02': 60.0, '0.05': 50.0, '0.1': None},
  'base': {'0.02': 40.0, '0.05': 55.0, '0.1': 45.0},
}


def test_the_runs_of_a_claim_follow_when_both_rates_are_known(plan):
  first = plan()
  assert first.trials == {'dfh': []} and len(first.cells()) == 6
  assert [cell.config.seed for cell in first.cells()] == [0] * 6
  assert all(first.may_diverge(cell) for cell in first.cells())
  finish(first, FIGURES)
  second = plan()
  found = {
    (trial.seed, cell.config.optim.lr, cell.config.components)
    for trial in second.trials['dfh']
    for pair in trial.runs.values()
    for cell in pair
  }
  both, alone = ('fedpav', 'dfh'), ('fedpav',)
  assert found == {
    *((0, 0.02, both), (0, 0.05, alone)),
    *((1, 0.02, both), (1, 0.05, alone)),
  }
  # The runs of the first seed are those of the search.
  new = [c for c in second.cells() if not rates.ended(c)]
  assert {cell.config.seed for cell in new} == {1} and len(new) == 2
  assert not any(second.may_diverge(cell) for cell in new)


def test_the_search_says_what_it_has_tried(plan):
  finish(plan(), FIGURES)
  arm, base = (search.found for search in plan().searches)
  assert arm.chosen == '0.02' and arm.at_edge
  assert base.chosen == '0.05' and not base.at_edge
  assert arm.rounds == 4  # of the two runs that did not diverge
  assert [point.mean for point in base.points] == [40.0, 55.0, 45.0]
  described = arm.described()
  assert described['points'][2] == {'point': '0.1', 'held_out_mAP': [None]}
  assert arm.points[2].cells() == ['0.1', 'diverged', 'diverged']


def test_of_equal_points_the_first_is_chosen(plan):
  same = dict.fromkeys(GRID.rates, 30.0)
  finish(plan(), {'arm': same, 'base': same})
  assert {search.chosen for search in plan().searches} == {'0.02'}


def test_a_method_that_always_diverges_has_no_trial(plan):
  figures = FIGURES | {'arm': dict.fromkeys(GRID.rates)}
  finish(plan(), figures)
  planned = plan()
  assert planned.trials == {'dfh': []}
  assert all(map(rates.ended, planned.cells()))
  assert [search.chosen for search in planned.searches] == ['', '0.05']


def test_another_error_is_no_result(plan):
  finish(plan(), FIGURES)
  cell = plan().searches[0].by_rate['0.1'][0]
  error = errors.ResourceError('no space left', 'disk', 'free some')
  (cell.workdir / runner.ERROR).write_text(error.line())
  assert not rates.ended(cell) and plan().searches[0].found is None
  assert plan().trials == {'dfh': []}


def test_the_mean_over_the_seeds_of_the_search_chooses(tmp_path):
  grid = planning.Grid(('0.02', '0.05'), (0, 1))
  planned = planning.plan([CLAIM], (0,), tmp_path, (), grid)
  scores = {'0.02': (60.0, 20.0), '0.05': (45.0, 44.0)}
  for search in planned.searches:
    for rate, cells in search.by_rate.items():
      for cell, value in zip(cells, scores[rate], strict=True):
        save(cell, value)
  planned = planning.plan([CLAIM], (0,), tmp_path, (), grid)
  (found, _) = (x.found for x in planned.searches)
  assert found.chosen == '0.05'
  assert [point.scores for point in found.points] == [*scores.values()]


def test_a_recipe_without_held_out_persons_keeps_its_rate(tmp_path):
  claim = dataclasses.replace(CLAIM, base=Arm('fedpav:smoke,optim.lr=0.03'))
  planned = planning.plan([claim], (0,), tmp_path, (), GRID)
  finish_arm = planned.searches[0]
  for rate, (cell,) in finish_arm.by_rate.items():
    save(cell, FIGURES['arm'][rate])
  (trial,) = planning.plan([claim], (0,), tmp_path, (), GRID).trials['dfh']
  ((arm, base),) = trial.runs.values()
  assert (arm.config.optim.lr, base.config.optim.lr) == (0.02, 0.03)
  assert planned.equal == {'dfh': {}}


def test_a_run_without_tests_on_held_out_persons_has_no_score(plan):
  cell = plan().searches[0].by_rate['0.02'][0]
  claim_runs.save(cell, global__mall=np.full(4, 0.5))
  done = {'rounds': 2, 'summary': [], 'evaluation': [_entry('mall', 2, 50.0)]}
  (cell.workdir / 'results.json').write_text(json.dumps(done))
  with pytest.raises(errors.ConfigError, match='evaluation.validation'):
    rates.score(cell)


def test_a_diverged_run_has_no_score(plan):
  cell = plan().searches[0].by_rate['0.02'][0]
  save(cell)
  assert rates.diverged(cell) and math.isnan(rates.score(cell))


def test_the_start_of_an_arm_has_its_own_rate(tmp_path):
  """The search of the arm begins when the rate of its start is known."""
  start = f'fedreid:smoke,{HELD_OUT}'
  arm = Arm(f'fedreid:smoke,variant=supervised,{HELD_OUT}', 'client', start)
  claim = dataclasses.replace(CLAIM, arm=arm, base=Arm(start))

  def plan():
    return planning.plan([claim], (0,), tmp_path, (), GRID)

  assert len(plan().searches) == 1
  for rate, (cell,) in plan().searches[0].by_rate.items():
    save(cell, FIGURES['base'][rate])
  first, second = plan().searches
  assert first.chosen == '0.05'
  starts = {c.config.start_from for own in second.by_rate.values() for c in own}
  assert starts == {str(first.by_rate['0.05'][0].workdir)}


def test_rates_are_in_the_order_of_the_routes(tmp_path):
  routes = route('plaza', 'mall'), route('park', 'mall')
  claim = dataclasses.replace(CLAIM, routes=routes)

  def plan():
    return planning.plan([claim], (0,), tmp_path, (), GRID)

  best = {'plaza': '0.1', 'park': '0.05'}
  for own in plan().searches:
    for rate, (cell,) in own.by_rate.items():
      save(cell, 60.0 if rate == best[own.route] else 50.0)
  (trial,) = plan().trials['dfh']
  assert study.rates_of(trial) == '0.1, 0.05 / 0.1, 0.05'


def test_what_is_trained_next(plan):
  """A diverged run of a search is done, another one is tried once a command."""
  finish(plan(), FIGURES)
  planned = plan()
  waiting = planned.waiting(planned.cells(), ())
  assert {cell.config.seed for cell in waiting} == {1}
  save(waiting[0])
  assert rates.diverged(waiting[0])
  assert planned.waiting(planned.cells(), ()) == waiting
  tried = {str(waiting[0].workdir)}
  assert planned.waiting(planned.cells(), tried) == waiting[1:]


def test_a_run_does_not_start_from_one_that_has_failed(tmp_path):
  start = 'fedreid:smoke'
  arm = Arm('fedreid:smoke,variant=supervised', 'client', start)
  claim = dataclasses.replace(CLAIM, arm=arm, base=Arm(start))
  planned = planning.plan([claim], (0,), tmp_path)
  first, second, *_ = planned.waiting(planned.cells(), ())
  assert second.workdir == first.workdir  # the base is the start
  save(first)
  assert planned.waiting(planned.cells(), {str(first.workdir)}) == []


@pytest.mark.parametrize(
  'rate, mu, edge',
  [('0.02', '0.05', True), ('0.05', '0.1', True), ('0.05', '0.05', False)],
)
def test_an_edge_is_one_of_any_field(plan, rate, mu, edge):
  """Whatever the order of the grid."""
  (cell,) = plan().searches[0].by_rate['0.02']
  by_point = {}
  for k, (x, y) in enumerate(
    itertools.product(('0.1', '0.02', '0.05'), ('0.1', '0.01', '0.05'))
  ):
    folder = cell.workdir.with_name(f'point{k}')
    fields = {'optim.lr': x, 'fedprox.mu': y, 'loss.kind': 'a'}
    own = cell._replace(workdir=folder, factors=fields)
    save(own, 60.0 if (x, y) == (rate, mu) else 50.0)
    by_point[f'{x} {y}'] = [own]
  found = rates.search(by_point)
  assert (found.chosen, found.at_edge) == (f'{rate} {mu}', edge)


def test_tables_of_rates_and_of_equal_rates(plan, tmp_path):
  planned = plan((0,))
  for search in planned.searches:
    arm = 'fedpav' not in search.recipe
    figures = FIGURES['arm' if arm else 'base']
    for rate, (cell,) in search.by_rate.items():
      save(cell, figures[rate], 0.8 if arm else 0.6)
  planned = plan((0,))
  study.write_rates(tmp_path / 'claims', planned, [CLAIM])
  lines = (tmp_path / 'claims_rates.md').read_text().splitlines()
  assert '| 0.02 | 0.02: 60.0; 0.05: 50.0; 0.1: diverged; at the' in lines[2]
  assert '| 0.05 | 0.02: 40.0; 0.05: 55.0; 0.1: 45.0 |' in lines[3]
  equal = (tmp_path / 'claims_equal.md').read_text()
  # The arm has diverged at the third rate.
  assert '| 0.02 | 60.0 | 80.0 | +20.0' in equal and '| 0.1 |' not in equal
  judged = study.judge(CLAIM, planned.trials['dfh'])
  assert judged.rates == '0.05 / 0.02'
  text = study.write(tmp_path / 'claims', [judged])
  assert '| 60.0 | 80.0 | 0.05 / 0.02 | +20.0 [+20.0, +20.0]' in text
