"""Messages about clients that a round leaves out, and signs of divergence."""

from types import SimpleNamespace

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.training import loop
from fedreid_jax.training.reports import monitor, report

NAMES = ['ash', 'birch', 'cedar', 'dogwood']


def test_clients_out_of_range_are_named_apart():
  said = []
  record = SimpleNamespace(say=said.append)
  found = monitor.Monitor(toy.toy_config(), record, (), monitor.Progress())
  found.check_updates(['ash', 'cedar'], ['cedar'], 4)
  assert 'ash is not finite' in said[0] and 'cedar' not in said[0]
  assert 'cedar is out of range' in said[1] and 'ash' not in said[1]
  found.check_updates(['ash'], (), 4)
  assert len(said) == 3
  both = r'not finite \(ash\) or out of range \(cedar\)'
  with pytest.raises(errors.DivergedError, match=both):
    found.check_updates(['ash', 'cedar'], ['cedar'], 4)


def test_a_few_faulty_clients_of_many_do_not_end_the_run():
  said = []
  record = SimpleNamespace(say=said.append)
  found = monitor.Monitor(toy.toy_config(), record, (), monitor.Progress())
  few, many = ['ash'] * 6, ['ash'] * 7
  for _ in range(4):
    found.check_updates(few, (), 64)
  assert len(said) == 4
  found.check_updates(many, (), 64)
  found.check_updates([], (), 64)
  found.check_updates(many, (), 64)
  found.check_updates(many, (), 64)
  with pytest.raises(errors.DivergedError, match='3 rounds in a row'):
    found.check_updates(many, (), 64)


def test_names_of_clients_out_of_range():
  log = {'clients': np.array([0, 2, 3])}
  assert report.out_of_range(log, NAMES) == []
  log['out_of_range'] = np.array([False, True, False])
  assert report.out_of_range(log, NAMES) == ['cedar']


def run(rounds, chance=2.0):
  """Returns (round, fatal) of every finding, and the last course."""
  course, found = monitor.Course(), []
  for number, (loss, accuracy) in enumerate(rounds, 1):
    course, finding = monitor.follow(course, loss, loss, accuracy, chance)
    if finding:
      found.append((number, finding.fatal))
  return found, course


@pytest.mark.parametrize(
  'losses, found',
  [
    ([2.0, 200.0], []),
    ([2.0, 200.1], [(2, False)]),
    ([2.0, 1.0, 150.0], []),  # of the first round, not of the best
    ([2.0, 300.0, 400.0, 500.0], [(2, False)]),  # once
    ([2.0, 300.0, 1.0, 300.0], [(2, False)]),
    ([2.0, 20_000.0], [(2, False)]),
    ([2.0, 20_001.0], [(2, True)]),
    ([2.0, 300.0, 20_001.0], [(2, False), (3, True)]),
    ([2.0, float('inf')], [(2, True)]),
    ([0.0, 0.9], []),  # one identity: a first loss of nothing
    ([0.0, 1.1], [(2, False)]),
    ([17.0, 16_090.0], [(2, False)]),
  ],
)
def test_loss_is_measured_by_the_first_round(losses, found):
  assert run([(loss, 50.0) for loss in losses])[0] == found


def test_the_first_round_counts_by_its_median():
  # One client of many came apart within the round.
  course, found = monitor.follow(monitor.Course(), 930.0, 3.0, 9.0, 2.0)
  assert course.first == 3.0 and course.warned
  assert found and not found.fatal
  assert '930, 310 times' in found.what and '(3)' in found.what


@pytest.mark.parametrize(
  'loss, chance, found',
  [
    (24.9, 2.5, False),
    (25.1, 2.5, True),
    (float('inf'), 2.5, True),
    (0.09, 0.0, False),  # one identity
    (0.11, 0.0, True),
  ],
)
def test_the_first_round_is_judged_by_guessing(loss, chance, found):
  """A destroyed first round is no measure for those after it."""
  guess = monitor.Guess(loss, chance)
  course, finding = monitor.follow(
    monitor.Course(), loss, loss, 9.0, 9.0, guess
  )
  assert (finding is not None) == found == course.warned
  if finding:
    assert not finding.fatal and 'guessing has' in finding.what


def test_a_component_with_a_large_loss_of_its_own_is_no_finding():
  guess = monitor.Guess(2.4, 2.5)
  _, finding = monitor.follow(monitor.Course(), 4000.0, 4000.0, 9.0, 9.0, guess)
  assert finding is None


@pytest.mark.parametrize(
  'accuracies, found',
  [
    ([20.0, 2.0, 2.0, 2.0, 2.0], []),
    ([20.0, 2.0, 2.0, 2.0, 2.0, 2.0], [6]),
    ([20.0, *[3.0] * 9], [6]),  # once
    ([20.0, 2.0, 2.0, 2.0, 2.0, 4.1, 2.0, 2.0], []),  # not in a row
    ([*[2.0] * 9], []),  # it never learned
    ([11.7, *[2.0] * 9], []),
    ([11.9, *[2.0] * 9], [6]),
  ],
)
def test_accuracy_back_at_chance(accuracies, found):
  got, _ = run([(1.0, accuracy) for accuracy in accuracies])
  assert got == [(number, False) for number in found]


def test_one_identity_is_never_at_chance():
  assert run([(1.0, 100.0)] * 9, chance=100.0)[0] == []


def test_a_course_from_a_checkpoint_goes_on():
  rounds = [(1.0, 20.0), *[(1.0, 2.0)] * 4]
  _, course = run(rounds)
  again = monitor.Course(**course._asdict())
  _, found = monitor.follow(again, 1.0, 1.0, 2.0, 2.0)
  assert found and 'chance' in found.what and not found.fatal


def test_fields_to_lower_are_those_in_use():
  config = toy.replaced(toy.toy_config(), {'components': ('fedpav', 'dfh')})
  assert monitor.to_lower(config) == 'lower optim.lr, dfh.lam'
  config = toy.replaced(config, {'loss.triplet': 1.0, 'dfh.lam': 0.0})
  assert monitor.to_lower(config) == 'lower optim.lr, loss.triplet'
  config = toy.replaced(
    config, {'components': ('fedpav',), 'loss.triplet': 0.0}
  )
  assert monitor.to_lower(config) == 'lower optim.lr'


@pytest.mark.slow
def test_updates_beyond_the_range_of_sums_end_a_run(
  small, federation, tmp_path, capsys
):
  small = toy.replaced(
    small, {'components': ('fedpav',), 'optim.lr': 1000.0, 'rounds': 4}
  )
  with pytest.raises(errors.DivergedError, match='out of range'):
    loop.train(small, tmp_path, verbose=True)
  assert capsys.readouterr().out.count('out of range') >= 2


@pytest.mark.slow
def test_a_run_destroyed_in_its_first_round_says_so(
  small, federation, tmp_path, capsys
):
  small = toy.replaced(
    small,
    {
      'components': ('fedpav',),
      'optim.lr': 1000.0,
      'rounds': 2,
      'execution.deterministic': False,
    },
  )
  results = loop.train(small, tmp_path, verbose=True)
  first, last = results['warnings']
  assert (first['round'], last['round']) == (1, 2)
  assert 'guessing has 1.1' in first['warning']
  assert last['warning'].startswith('the last round is worse than an untrained')
  table = capsys.readouterr().out.partition('unseen targets')[2]
  assert f'warning: {last["warning"]}' in ' '.join(table.split())
