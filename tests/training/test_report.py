import json
from types import SimpleNamespace

import numpy as np
import pytest
import toy

from fedreid_jax.training.files import recorder
from fedreid_jax.training.reports import monitor, report

NAMES = ['ash', 'birch', 'cedar', 'dogwood']
LOG = {
  'clients': np.array([0, 2, 3]),
  'valid': np.array([True, False, True]),
  'per_client': {'loss': np.array([1.5, np.nan, 2.5], np.float32)},
}


def test_metrics_of_clients_with_a_finite_update():
  assert report.client_values(LOG, NAMES) == {
    'ash': {'loss': 1.5},
    'dogwood': {'loss': 2.5},
  }
  weighted = LOG | {'weights': np.array([0.25, 0.0, 0.75], np.float32)}
  assert report.client_values(weighted, NAMES) == {
    'ash': {'loss': 1.5, 'weight': 0.25},
    'dogwood': {'loss': 2.5, 'weight': 0.75},
  }


def test_a_small_cohort_has_the_names_of_its_clients():
  timed = SimpleNamespace(late=np.array([1]))
  weights = np.array([0.25, 0.0, 0.75], np.float32)
  log = LOG | {'timetable': timed, 'weights': weights}
  assert report.cohort_values(log, NAMES, 'lines') == {
    'clients': ['ash', 'cedar', 'dogwood'],
    'excluded': ['cedar'],
    'late': ['birch'],
    'weights': [0.25, 0.0, 0.75],
  }
  assert report.cohort_values(log, NAMES, 'files') == {
    **{'num_clients': 3, 'num_excluded': 1, 'num_late': 1},
    'over_clients': {
      'loss': {'min': 1.5, 'median': 2.0, 'max': 2.5},
      'weight': {'min': 0.25, 'median': 0.5, 'max': 0.75},
    },
  }


def line_of(clients, form):
  """Returns the letters of a line on a round of a number of clients."""
  odd = np.arange(clients) % 2 > 0
  log = {
    'clients': np.arange(clients),
    'valid': odd,
    'per_client': {'loss': np.where(odd, 1.5, np.nan)},
    'weights': odd * 0.5,
    'timetable': SimpleNamespace(late=np.arange(clients)),
  }
  names = [f'{k:05d}' for k in range(clients)]
  return len(json.dumps(report.cohort_values(log, names, form)))


@pytest.mark.parametrize('form', ['files', 'summary'])
def test_the_line_of_a_large_cohort_does_not_grow(form):
  # Numbers of three digits each.
  assert line_of(200, form) == line_of(998, form) < 300
  assert line_of(998, 'lines') > 4 * line_of(200, 'lines')


@pytest.mark.parametrize(
  'target, line',
  [('park', 'by mAP on the targets'), ('validation:ash', 'by mAP on held-out')],
)
def test_the_summary_says_what_chose_the_best_round(
  tmp_path, capsys, target, line
):
  entry = {
    **{'protocol': 'market', 'direction': 'all', 'distance': 'euclidean'},
    **{'model': 'global', 'queries': 1, 'gallery': 2, 'invalid_queries': 0},
  }
  entries = [
    entry | {'target': name, 'round': round_, 'metrics': {'mAP': score}}
    for name in ('mall', target)
    for round_, score in ((0, 1.0), (1, 3.0), (2, 2.0))
  ]
  record = recorder.Recorder(tmp_path, 2)
  state = monitor.Progress(evaluation=entries)
  report.print_summary(toy.toy_config(), record, state)
  out = capsys.readouterr().out
  assert f'best rounds were chosen {line}' in out
  assert 'mall' in out and 'validation:' not in out


def entry(round_, mAP, target='mall', model='global', **metrics):
  return {
    'round': round_,
    'target': target,
    'model': model,
    'metrics': {'mAP': mAP, **metrics},
  }


def of_kind(found, kind):
  return {(e['target'], e['model']): e for e in found if e['kind'] == kind}


def test_means_have_the_metrics_of_all_their_rounds():
  """An evaluator with a period has none in some rounds."""
  entries = [entry(1, 10, EER=4.0), entry(2, 20), entry(3, 30, EER=5.0)]
  found = report.summarise(entries)
  assert of_kind(found, 'best_three')['mall', 'global']['metrics'] == {
    'mAP': 20
  }
  assert of_kind(found, 'last')['mall', 'global']['metrics']['EER'] == 5.0


def test_map_chooses_the_best_rounds_and_the_checkpoint():
  """Round 4 is best on one target, and round 1 by rank-1, yet 2 on both."""
  mall = {1: 10, 2: 30, 3: 40, 4: 90, 5: 20}
  park = {1: 90, 2: 80, 3: 60, 4: 0, 5: 70}  # means 50, 55, 50, 45, 45
  entries = [entry(r, x, 'mall', rank1=9 - r) for r, x in mall.items()]
  entries += [entry(r, x, 'park', rank1=90.0 - r) for r, x in park.items()]
  found = report.summarise(entries)
  best = of_kind(found, 'best_three')
  assert [e['rounds'] for e in best.values()] == [[1, 2, 3]] * 2
  assert best['mall', 'global']['metrics'] == pytest.approx(
    {'mAP': 80 / 3, 'rank1': 7}
  )
  assert best['park', 'global']['metrics'] == pytest.approx(
    {'mAP': 230 / 3, 'rank1': 88}
  )
  last = of_kind(found, 'last')
  assert [e['rounds'] for e in last.values()] == [[5]] * 2
  assert last['mall', 'global']['metrics'] == {'mAP': 20, 'rank1': 4}
  (one, other) = of_kind(found, 'best').values()
  assert one['rounds'] == other['rounds'] == [2]
  assert one['metrics'] == {'mAP': 30, 'rank1': 7}
  assert other['metrics'] == {'mAP': 80, 'rank1': 88}
  assert len(found) == 6
  scores = [
    report.checkpoint_score([e for e in entries if e['round'] == r])
    for r in mall
  ]
  assert scores == [50, 55, 50, 45, 45]


def test_where_large_sets_are_tested_they_alone_choose_the_rounds():
  """As the papers do; the small ones would choose others."""
  large = {'market1501': (50, 60, 10, 40), 'msmt17': (10, 20, 70, 0)}
  small = {'viper': (0, 0, 0, 99), 'grid': (0, 0, 0, 99)}
  entries = [
    entry(round_, mAP, target)
    for target, found in (large | small).items()
    for round_, mAP in enumerate(found, start=1)
  ]  # means of the large: 30, 40, 40, 20; of all four: 15, 20, 20, 59.5
  best = of_kind(report.summarise(entries), 'best_three')
  assert {tuple(e['rounds']) for e in best.values()} == {(1, 2, 3)}
  assert best['viper', 'global']['metrics']['mAP'] == 0
  assert best['msmt17', 'global']['metrics']['mAP'] == pytest.approx(100 / 3)


@pytest.mark.parametrize(
  'large', ['market1501', 'dukemtmc', 'cuhk03-np', 'msmt17']
)
def test_each_of_the_four_large_sets_is_a_judge(large):
  entries = [entry(r, r, large) for r in (1, 2, 3, 4)]
  entries += [entry(r, 50 - 10 * r, 'grid') for r in (1, 2, 3, 4)]
  best = of_kind(report.summarise(entries), 'best_three')
  assert best['grid', 'global']['rounds'] == [2, 3, 4]


def test_of_equal_rounds_the_later_count():
  found = report.summarise([entry(r, 7) for r in (9, 3, 6, 1)])
  best = of_kind(found, 'best_three')['mall', 'global']
  assert best['rounds'] == [3, 6, 9]
  assert of_kind(found, 'best')['mall', 'global']['rounds'] == [9]


def test_fewer_than_three_rounds_are_all_averaged():
  found = report.summarise([entry(5, 10.0), entry(10, 20.0)])
  best = of_kind(found, 'best_three')['mall', 'global']
  assert best['rounds'] == [5, 10] and best['metrics']['mAP'] == 15
  assert of_kind(found, 'last')['mall', 'global']['metrics']['mAP'] == 20


def test_only_the_global_model_has_a_best_three():
  entries = [
    entry(r, 10 * r, model=m)
    for r in (1, 2, 3, 4)
    for m in ('global', 'client:ash')
  ]
  found = report.summarise(entries)
  assert [*of_kind(found, 'best_three')] == [('mall', 'global')]
  assert {m for _, m in of_kind(found, 'best')} == {'global'}
  assert {m for _, m in of_kind(found, 'own_best')} == {'client:ash'}
  assert {m for _, m in of_kind(found, 'last')} == {'global', 'client:ash'}
  alone = report.summarise([e for e in entries if e['model'] != 'global'])
  assert [e['kind'] for e in alone] == ['last', 'own_best']


def test_best_round_of_a_client_is_its_own():
  """By the mean over its targets, with all figures of that round."""
  scores = {1: (50, 70), 2: (60, 10), 3: (60, 61), 4: (0, 69)}
  entries = [
    entry(r, x, target, 'client:ash', rank1=100 - r)
    for r, both in scores.items()
    for target, x in zip(('mall', 'park'), both, strict=True)
  ]
  entries += [entry(r, 99 - r, 'mall', 'client:birch') for r in scores]
  entries += [entry(r, 50 + r, 'mall', 'global') for r in scores]
  found = of_kind(report.summarise(entries), 'own_best')
  assert {key: e['rounds'] for key, e in found.items()} == {
    ('mall', 'client:ash'): [3],
    ('park', 'client:ash'): [3],
    ('mall', 'client:birch'): [1],
  }
  metrics = {'mAP': 60.0, 'rank1': 97.0}
  assert found['mall', 'client:ash']['metrics'] == metrics


def test_models_of_clusters_choose_a_round_together():
  models = ('cluster:0', 'cluster:1')
  entries = [
    entry(r, x, model=model)
    for r, both in ((1, (50, 10)), (2, (40, 30)))
    for model, x in zip(models, both, strict=True)
  ]
  found = report.summarise([*entries, entry(1, 99, model='client:ash')])
  best = of_kind(found, 'best')
  assert {m: e['rounds'] for (_, m), e in best.items()} == {
    'cluster:0': [2],
    'cluster:1': [2],
  }


def test_before_training_counts_only_while_there_is_nothing_else():
  assert report.summarise([]) == []
  found = report.summarise([entry(0, 99.0)])
  assert [e['rounds'] for e in found] == [[0]] * 3
  found = report.summarise([entry(0, 99.0), entry(5, 1.0)])
  assert {tuple(e['rounds']) for e in found} == {(5,)}


def test_spreads_over_trials_are_not_averaged():
  entries = [entry(1, 10.0, mAP_std=3.0), entry(2, 20.0, mAP_std=4.0)]
  for element in report.summarise(entries):
    assert element['metrics'].keys() == {'mAP'}
    assert np.isfinite(element['metrics']['mAP'])


def test_held_out_persons_choose_rounds_where_there_are_any():
  """On the target round 1 is best, on the held-out persons round 2."""
  entries = [
    entry(1, 80.0),
    entry(2, 40.0),
    entry(1, 5.0, 'validation:plaza'),
    entry(2, 15.0, 'validation:plaza'),
  ]
  best = of_kind(report.summarise(entries), 'best')
  assert best['mall', 'global']['rounds'] == [2]
  assert best['mall', 'global']['metrics']['mAP'] == 40
  assert best['mall', 'global']['chosen_on'] == 'validation'
  assert report.checkpoint_score(entries[:1]) == 80.0
  assert report.checkpoint_score(entries[:3:2]) == 5.0
  without = of_kind(report.summarise(entries[:2]), 'best')['mall', 'global']
  assert (without['rounds'], without['chosen_on']) == ([1], 'targets')
  assert (
    of_kind(report.summarise(entries), 'last')['mall', 'global']['chosen_on']
    == ''
  )
  own = [e | {'model': 'client:plaza'} for e in entries]
  best = of_kind(report.summarise(own), 'own_best')
  assert best['mall', 'client:plaza']['rounds'] == [2]
  assert report.checkpoint_score([]) is None
