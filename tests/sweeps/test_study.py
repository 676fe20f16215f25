import dataclasses
import json

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.config import claims
from fedreid_jax.config.claims.declare import Arm, Claim, route
from fedreid_jax.sweeps import runner, study

CLAIM = Claim(
  'dfh',
  'a paper, table 1',
  'DFH improves FedPav.',
  '+9',
  Arm('dfh:smoke'),
  Arm('dfh:smoke,components=("fedpav",)'),
  (route('plaza campus', 'mall park'),),
)


def save(cell, **precision):
  """Writes the files of a finished run; a key is MODEL__TARGET."""
  cell.workdir.mkdir(parents=True)
  arrays = {f'{k.replace("__", "/")}/0': v for k, v in precision.items()}
  np.savez(cell.workdir / 'queries.npz', **arrays)
  done = {'rounds': cell.config.rounds, 'summary': []}
  (cell.workdir / 'results.json').write_text(json.dumps(done))


@pytest.fixture
def trials(tmp_path):
  return study.plan([CLAIM], (0, 1, 2), tmp_path)['dfh']


def test_a_claim_is_judged_by_the_seeds_that_both_arms_have(trials):
  for trial in trials:
    ((arm, base),) = trial.runs.values()
    if trial.seed < 2:
      save(arm, global__mall=np.full(4, 0.5), global__park=np.full(9, 0.3))
    save(base, global__mall=np.full(4, 0.4), global__park=np.full(9, 0.3))
  judged = study.judge(CLAIM, trials)
  assert (judged.arm, judged.base) == pytest.approx((40.0, 35.0))
  assert judged.found.mean == pytest.approx(5.0)
  assert (judged.found.seeds, judged.found.targets) == (2, 2)


def test_without_runs_there_is_no_verdict(trials, tmp_path):
  judged = study.judge(CLAIM, trials)
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
  ],
)
def test_models_of_an_arm(trials, models, expected):
  cell = next(iter(trials[0].runs.values()))[0]
  save(
    cell,
    global__mall=np.array([0.1, 0.2]),
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


def test_equal_runs_of_claims_are_one_run(tmp_path):
  other = dataclasses.replace(CLAIM, name='other')
  plan = study.plan([CLAIM, other], (0,), tmp_path)
  assert len(study.cells(plan)) == 4
  assert len(runner.take_shard(study.cells(plan), '')) == 2


@pytest.mark.parametrize('name', claims.CLAIMS)
def test_claims_are_valid_and_their_arms_differ(name, tmp_path):
  claim = claims.CLAIMS[name]
  (trial,) = study.plan([claim], (0,), tmp_path)[name]
  assert len(trial.runs) == len(claim.routes)
  for arm, base in trial.runs.values():
    assert arm.workdir != base.workdir or claim.arm.models != claim.base.models
    assert arm.config.rounds == base.config.rounds
    assert arm.config.data.sources == base.config.data.sources
    assert arm.config.data.targets == base.config.data.targets
    if claim.routes[0].changes and not arm.config.data.allow_overlap:
      names = set(arm.config.data.sources) & set(arm.config.data.targets)
      assert not names and len(arm.config.data.targets) >= 3


def test_main_claims_come_first():
  firsts = [claim.first for claim in claims.CLAIMS.values()]
  assert firsts == sorted(firsts, reverse=True) and any(firsts)
  sources = {
    c.source.partition(',')[0] for c in claims.CLAIMS.values() if c.first
  }
  assert len(sources) >= 4


def test_an_unknown_field_is_refused(tmp_path):
  with pytest.raises(errors.ConfigError, match='optim.lrs'):
    study.plan([CLAIM], (0,), tmp_path, ('optim.lrs=1',))
