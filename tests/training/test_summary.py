import numpy as np
import pytest

from fedreid_jax.training.reports import summary


def entry(round_, rank1, target='mall', model='global', **metrics):
  return {
    'round': round_,
    'target': target,
    'model': model,
    'metrics': {'rank1': rank1, **metrics},
  }


def of_kind(found, kind):
  return {(e['target'], e['model']): e for e in found if e['kind'] == kind}


def test_best_three_are_by_the_mean_rank1_over_targets():
  """Round 4 is best on one target, yet not among the three on both."""
  mall = {1: 10, 2: 30, 3: 40, 4: 90, 5: 20}
  park = {1: 90, 2: 80, 3: 60, 4: 0, 5: 70}  # means 50, 55, 50, 45, 45
  entries = [entry(r, x, 'mall', mAP=r) for r, x in mall.items()]
  entries += [entry(r, x, 'park', mAP=10.0 * r) for r, x in park.items()]
  found = summary.summarise(entries)
  best = of_kind(found, 'best_three')
  assert [e['rounds'] for e in best.values()] == [[1, 2, 3]] * 2
  assert best['mall', 'global']['metrics'] == pytest.approx(
    {'rank1': 80 / 3, 'mAP': 2}
  )
  assert best['park', 'global']['metrics'] == pytest.approx(
    {'rank1': 230 / 3, 'mAP': 20}
  )
  last = of_kind(found, 'last')
  assert [e['rounds'] for e in last.values()] == [[5]] * 2
  assert last['mall', 'global']['metrics'] == {'rank1': 20, 'mAP': 5}
  (one, other) = of_kind(found, 'best').values()
  assert one['rounds'] == other['rounds'] == [2]
  assert one['metrics'] == {'rank1': 30, 'mAP': 2}
  assert other['metrics'] == {'rank1': 80, 'mAP': 20}
  assert len(found) == 6


def test_where_large_sets_are_tested_they_alone_choose_the_rounds():
  """As the papers do; the small ones would choose others."""
  large = {'market1501': (50, 60, 10, 40), 'msmt17': (10, 20, 70, 0)}
  small = {'viper': (0, 0, 0, 99), 'grid': (0, 0, 0, 99)}
  entries = [
    entry(round_, rank1, target)
    for target, found in (large | small).items()
    for round_, rank1 in enumerate(found, start=1)
  ]  # means of the large: 30, 40, 40, 20; of all four: 15, 20, 20, 59.5
  best = of_kind(summary.summarise(entries), 'best_three')
  assert {tuple(e['rounds']) for e in best.values()} == {(1, 2, 3)}
  assert best['viper', 'global']['metrics']['rank1'] == 0
  assert best['msmt17', 'global']['metrics']['rank1'] == pytest.approx(100 / 3)


@pytest.mark.parametrize(
  'large', ['market1501', 'dukemtmc', 'cuhk03-np', 'msmt17']
)
def test_each_of_the_four_large_sets_is_a_judge(large):
  entries = [entry(r, r, large) for r in (1, 2, 3, 4)]
  entries += [entry(r, 50 - 10 * r, 'grid') for r in (1, 2, 3, 4)]
  best = of_kind(summary.summarise(entries), 'best_three')
  assert best['grid', 'global']['rounds'] == [2, 3, 4]


def test_of_equal_rounds_the_earlier_count():
  found = summary.summarise([entry(r, 7) for r in (9, 3, 6, 1)])
  best = of_kind(found, 'best_three')['mall', 'global']
  assert best['rounds'] == [1, 3, 6]
  assert of_kind(found, 'best')['mall', 'global']['rounds'] == [1]


def test_fewer_than_three_rounds_are_all_averaged():
  found = summary.summarise([entry(5, 10.0), entry(10, 20.0)])
  best = of_kind(found, 'best_three')['mall', 'global']
  assert best['rounds'] == [5, 10] and best['metrics']['rank1'] == 15
  assert of_kind(found, 'last')['mall', 'global']['metrics']['rank1'] == 20


def test_only_the_global_model_has_a_best_three():
  entries = [
    entry(r, 10 * r, model=m)
    for r in (1, 2, 3, 4)
    for m in ('global', 'client:ash')
  ]
  found = summary.summarise(entries)
  assert [*of_kind(found, 'best_three')] == [('mall', 'global')]
  assert {m for _, m in of_kind(found, 'best')} == {'global', 'client:ash'}
  assert {m for _, m in of_kind(found, 'last')} == {'global', 'client:ash'}
  alone = summary.summarise([e for e in entries if e['model'] != 'global'])
  assert [e['kind'] for e in alone] == ['last', 'best']


def test_best_round_of_a_client_is_its_own_on_each_target():
  """Of equal rounds the earlier, of rank-1, with all figures of that round."""
  scores = {1: (50, 70), 2: (60, 10), 3: (60, 20), 4: (0, 69)}
  entries = [
    entry(r, x, target, 'client:ash', mAP=100 - r)
    for r, both in scores.items()
    for target, x in zip(('mall', 'park'), both, strict=True)
  ]
  entries += [entry(r, 99 - r, 'mall', 'global') for r in scores]
  found = of_kind(summary.summarise(entries), 'best')
  assert found.pop(('mall', 'global'))['rounds'] == [1]
  assert {key: e['rounds'] for key, e in found.items()} == {
    ('mall', 'client:ash'): [2],
    ('park', 'client:ash'): [1],
  }
  metrics = {'rank1': 60.0, 'mAP': 98.0}
  assert found['mall', 'client:ash']['metrics'] == metrics


def test_other_models_do_not_choose_the_rounds():
  entries = [entry(r, 10 - r) for r in (1, 2, 3, 4)]
  entries += [entry(4, 100, model='cluster:1')]
  best = of_kind(summary.summarise(entries), 'best_three')
  assert best['mall', 'global']['rounds'] == [1, 2, 3]


def test_before_training_counts_only_while_there_is_nothing_else():
  assert summary.summarise([]) == []
  found = summary.summarise([entry(0, 99.0)])
  assert [e['rounds'] for e in found] == [[0]] * 3
  found = summary.summarise([entry(0, 99.0), entry(5, 1.0)])
  assert {tuple(e['rounds']) for e in found} == {(5,)}


def test_spreads_over_trials_are_not_averaged():
  entries = [entry(1, 10.0, rank1_std=3.0), entry(2, 20.0, rank1_std=4.0)]
  for element in summary.summarise(entries):
    assert element['metrics'].keys() == {'rank1'}
    assert np.isfinite(element['metrics']['rank1'])


def test_held_out_persons_choose_rounds_where_there_are_any():
  """On the target round 1 is best, on the held-out persons round 2."""
  entries = [
    entry(1, 90, mAP=80.0),
    entry(2, 50, mAP=40.0),
    entry(1, 10, 'validation:plaza', mAP=5.0),
    entry(2, 20, 'validation:plaza', mAP=15.0),
  ]
  best = of_kind(summary.summarise(entries), 'best')
  assert best['mall', 'global']['rounds'] == [2]
  assert best['mall', 'global']['metrics']['rank1'] == 50
  assert best['mall', 'global']['chosen_on'] == 'validation'
  assert summary.checkpoint_score(entries[:1]) == 80.0
  assert summary.checkpoint_score(entries[:3:2]) == 5.0
  without = of_kind(summary.summarise(entries[:2]), 'best')['mall', 'global']
  assert (without['rounds'], without['chosen_on']) == ([1], 'targets')
  assert (
    of_kind(summary.summarise(entries), 'last')['mall', 'global']['chosen_on']
    == ''
  )
  own = [e | {'model': 'client:plaza'} for e in entries]
  best = of_kind(summary.summarise(own), 'best')
  assert best['mall', 'client:plaza']['rounds'] == [2]
  assert summary.checkpoint_score([]) is None
