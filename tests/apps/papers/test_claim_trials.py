import dataclasses
import functools

import claim_runs
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.apps.papers import claims
from fedreid_jax.apps.papers.claims.declare import Arm
from fedreid_jax.apps.papers.runs import cells, trials

CLAIM, save = claim_runs.CLAIM, claim_runs.save
TUNED = Arm('fedreid:smoke,variant=supervised', 'client', start='fedreid:smoke')


def test_equal_runs_of_claims_are_one_run(tmp_path):
  other = dataclasses.replace(CLAIM, name='other')
  planned = trials.plan([CLAIM, other], (0,), tmp_path)
  assert len(trials.cells(planned)) == 4
  assert len(cells.take_shard(trials.cells(planned), '')) == 2


def test_a_claim_has_no_more_seeds_than_it_declares(tmp_path):
  side = dataclasses.replace(CLAIM, name='side', seeds=2)
  planned = trials.plan([CLAIM, side], (4, 2, 0), tmp_path)
  assert [[t.seed for t in own] for own in planned.values()] == [
    [4, 2, 0],
    [4, 2],
  ]
  assert len(cells.take_shard(trials.cells(planned), '')) == 6


def test_a_run_that_starts_from_another_one_comes_after_it(tmp_path):
  """Even if no arm of the chosen claims is that other run."""
  claim = dataclasses.replace(
    CLAIM, arm=TUNED, base=Arm('standalone:smoke', 'client')
  )
  planned = trials.plan([claim], (0, 1), tmp_path)
  found = trials.cells(planned)
  names = [cell.workdir for cell in found]
  assert len(found) == 6
  assert [c.config.start_from for c in found[:4]] == [''] * 4
  for trial in planned['dfh']:
    ((arm, _),) = trial.runs.values()
    assert names.index(tmp_path / arm.config.start_from) < names.index(
      arm.workdir
    )
    (start,) = trial.starts
    assert start.config.seed == arm.config.seed == trial.seed
    assert start.config.data.sources == arm.config.data.sources


def test_runs_have_the_same_names_in_every_folder(tmp_path):
  claim = dataclasses.replace(CLAIM, arm=TUNED)

  def names(folder):
    found = trials.cells(trials.plan([claim], (0, 1), folder))
    assert {c.config.start_from for c in found} > {''}
    return [cell.workdir.name for cell in found]

  assert names(tmp_path / 'here') == names(tmp_path / 'there')
  assert len({*names(tmp_path)}) == 6


def test_a_run_waits_for_the_end_of_that_from_which_it_starts(tmp_path):
  claim = dataclasses.replace(CLAIM, arm=TUNED)
  (trial,) = trials.plan([claim], (0,), tmp_path)['dfh']
  ((arm, _),), (start,) = trial.runs.values(), trial.starts
  trained = []
  train = functools.partial(
    trials.after_its_start, lambda config, workdir: trained.append(config)
  )
  train(start.config, start.workdir)
  with pytest.raises(errors.ConfigError, match='is not finished'):
    train(arm.config, arm.workdir)
  save(start, global__mall=np.zeros(2))
  train(arm.config, arm.workdir)
  assert trained == [start.config, arm.config]


@pytest.mark.parametrize('name', claims.CLAIMS)
def test_claims_are_valid_and_their_arms_differ(name, tmp_path):
  claim = claims.CLAIMS[name]
  (trial,) = trials.plan([claim], (0,), tmp_path)[name]
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
    trials.plan([CLAIM], (0,), tmp_path, ('optim.lrs=1',))
