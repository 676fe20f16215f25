import json

import claim_runs
import numpy as np
import pytest

from fedreid_jax.apps.papers.runs import study, trials

CLAIM, save = claim_runs.CLAIM, claim_runs.save


@pytest.fixture
def planned(tmp_path):
  return trials.plan([CLAIM], (0, 1, 2), tmp_path)['dfh']


def test_a_claim_is_judged_by_the_seeds_that_both_arms_have(planned):
  for trial in planned:
    ((arm, base),) = trial.runs.values()
    if trial.seed < 2:
      save(arm, global__mall=np.full(4, 0.5), global__park=np.full(9, 0.3))
    save(base, global__mall=np.full(4, 0.4), global__park=np.full(9, 0.3))
  assert trials.ended(planned) == (0, 1)
  judged = study.judge(CLAIM, planned[:2])
  assert (judged.arm, judged.base) == pytest.approx((40.0, 35.0))
  assert judged.found.mean == pytest.approx(5.0)
  assert (judged.found.seeds, judged.found.targets) == (2, 2)


def test_without_runs_there_is_no_verdict(planned, tmp_path):
  assert trials.ended(planned) == ()
  judged = study.judge(CLAIM, [])
  assert judged.verdict == 'no runs yet' and judged.found is None
  text = study.write(tmp_path / 'claims', [judged])
  assert 'no runs yet' in text and '+9' in text
  assert json.loads((tmp_path / 'claims.json').read_text())[0]['claim'] == 'dfh'


@pytest.mark.parametrize(
  'models, expected',
  [
    ('global', {'mall': [0.1, 0.2]}),
    ('client', {'mall': [0.5, 0.6], 'plaza': [0.9]}),
    ('best_client', {'mall': [0.8, 0.9]}),
    ('average', {'mall': [0.3, 0.7]}),
  ],
)
def test_models_of_an_arm(planned, models, expected):
  cell = next(iter(planned[0].runs.values()))[0]
  save(
    cell,
    global__mall=np.array([0.1, 0.2]),
    average__mall=np.array([0.3, 0.7]),
    **{
      'client:a__mall': np.array([0.8, 0.9]),
      'client:b__mall': np.array([0.2, 0.3]),
    },
    **({'client:b__plaza': np.array([0.9])} if models == 'client' else {}),
  )
  found = study.precision(cell.workdir, models)
  assert found.keys() == expected.keys()
  for target, values in expected.items():
    np.testing.assert_allclose(found[target], values)
