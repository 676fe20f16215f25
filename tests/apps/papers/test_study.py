"""The runs of claims: their plan, and the verdicts from them."""

import dataclasses
import hashlib
import json
from pathlib import Path

import claim_runs
import numpy as np
import pytest

from benchmarks import judge_published
from fedreid_jax import errors
from fedreid_jax.apps.papers import cells, planning, study
from fedreid_jax.apps.papers.tables.declare import Arm
from fedreid_jax.apps.papers.tables.index import CLAIMS

CLAIM, save = claim_runs.CLAIM, claim_runs.save
TUNED = Arm('fedreid:smoke,variant=supervised', 'client', start='fedreid:smoke')
DOCS = Path(__file__).parents[3] / 'docs'


@pytest.fixture
def planned(tmp_path):
  return planning.plan([CLAIM], (0, 1, 2), tmp_path).trials['dfh']


def test_a_claim_is_judged_by_the_seeds_that_both_arms_have(planned):
  for trial in planned:
    ((arm, base),) = trial.runs.values()
    if trial.seed < 2:
      save(arm, global__mall=np.full(4, 0.5), global__park=np.full(9, 0.3))
    save(base, global__mall=np.full(4, 0.4), global__park=np.full(9, 0.3))
  assert planning.ended(planned) == (0, 1)
  judged = study.judge(CLAIM, planned[:2])
  assert (judged.arm, judged.base) == pytest.approx((40.0, 35.0))
  assert judged.found.mean == pytest.approx(5.0)
  assert (judged.found.seeds, judged.found.targets) == (2, 2)
  raw = {target: one.raw for target, one in judged.targets.items()}
  assert raw == pytest.approx(
    {'plaza+campus: mall': 10.0, 'plaza+campus: park': 0.0}, abs=1e-6
  )


def test_without_runs_there_is_no_verdict(planned, tmp_path):
  assert planning.ended(planned) == ()
  judged = study.judge(CLAIM, [])
  assert judged.alone == 'no runs yet' and judged.found is None
  text = study.write(tmp_path / 'claims', [judged])
  assert 'no runs yet' in text and '+9' in text
  assert json.loads((tmp_path / 'claims.json').read_text())[0]['claim'] == 'dfh'
  assert len((tmp_path / 'claims_targets.md').read_text().splitlines()) == 2


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


def test_equal_runs_of_claims_are_one_run(tmp_path):
  other = dataclasses.replace(CLAIM, name='other')
  planned = planning.plan([CLAIM, other], (0,), tmp_path)
  assert len(planned.cells()) == 4
  assert len(cells.take_shard(planned.cells(), '')) == 2


def test_a_claim_has_no_more_seeds_than_it_declares(tmp_path):
  side = dataclasses.replace(CLAIM, name='side', seeds=2)
  planned = planning.plan([CLAIM, side], (4, 2, 0), tmp_path)
  assert [[t.seed for t in own] for own in planned.trials.values()] == [
    [4, 2, 0],
    [4, 2],
  ]
  assert len(cells.take_shard(planned.cells(), '')) == 6


def test_a_run_that_starts_from_another_one_comes_after_it(tmp_path):
  """Even if no arm of the chosen claims is that other run."""
  claim = dataclasses.replace(
    CLAIM, arm=TUNED, base=Arm('standalone:smoke', 'client')
  )
  planned = planning.plan([claim], (0, 1), tmp_path)
  found = planned.cells()
  names = [cell.workdir for cell in found]
  assert len(found) == 6
  assert [c.config.start_from for c in found[:4]] == [''] * 4
  for trial in planned.trials['dfh']:
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
    found = planning.plan([claim], (0, 1), folder).cells()
    assert {c.config.start_from for c in found} > {''}
    return [cell.workdir.name for cell in found]

  assert names(tmp_path / 'here') == names(tmp_path / 'there')
  assert len({*names(tmp_path)}) == 6


@pytest.mark.parametrize('name', CLAIMS)
def test_claims_are_valid_and_their_arms_differ(name, tmp_path):
  claim = CLAIMS[name]
  (trial,) = planning.plan([claim], (0,), tmp_path).trials[name]
  assert len(trial.runs) == len(claim.routes)
  for arm, base in trial.runs.values():
    assert arm.workdir != base.workdir or claim.arm.models != claim.base.models
    assert arm.config.rounds == base.config.rounds
    assert arm.config.data.sources == base.config.data.sources
    assert arm.config.data.targets == base.config.data.targets
    if claim.routes[0].changes and not arm.config.data.allow_overlap:
      names = set(arm.config.data.sources) & set(arm.config.data.targets)
      assert not names and len(arm.config.data.targets) >= 3


def test_the_words_of_a_claim_fit_beside_its_interval():
  texts = [claim.text for claim in CLAIMS.values()]
  assert len({*texts}) == len(texts)
  assert [text for text in texts if len(text.split()) > 8] == []


def test_main_claims_come_first():
  firsts = [claim.first for claim in CLAIMS.values()]
  assert firsts == sorted(firsts, reverse=True) and any(firsts)
  sources = {c.source.partition(',')[0] for c in CLAIMS.values() if c.first}
  assert len(sources) >= 4


def test_an_unknown_field_is_refused(tmp_path):
  with pytest.raises(errors.ConfigError, match='optim.lrs'):
    planning.plan([CLAIM], (0,), tmp_path, ('optim.lrs=1',))


def test_published_archives_have_their_digests():
  folder = DOCS / 'results'
  sums = dict(
    reversed(line.split())
    for line in (folder / 'SHA256SUMS').read_text().splitlines()
  )
  published = [*folder.glob('*.tar.xz'), *folder.glob('*.json')]
  assert sums == {
    path.name: hashlib.sha256(path.read_bytes()).hexdigest()
    for path in published
  }


@pytest.mark.slow
def test_published_runs_have_the_published_effects(tmp_path):
  """The archives have the planned runs, and the pages rows of no others."""
  judged = judge_published.write(tmp_path)
  for one in judge_published.ARCHIVES.values():
    runs = tmp_path / one.name
    found = {cell.workdir.name for cell in one.plan(runs).cells()}
    assert found == {path.name for path in runs.iterdir()}
  for name, claims in judged.items():
    page = (DOCS / 'results' / f'{name}.md').read_text()
    rows = json.loads((tmp_path / f'{name}.json').read_text())
    text = (tmp_path / f'{name}.md').read_text()
    for own, row in zip(claims, rows, strict=True):
      effect, detectable = own.found.texts()
      published = (
        f'| {own.base:.1f} | {own.arm:.1f} | {own.rates} | {effect} '
        f'| {detectable} | {row["verdict"]} | {own.found.seeds} |'
      )
      assert published in page and own.rates in text
    ends = [x for x in page.splitlines() if x.endswith(('| 3 |', '| 5 |'))]
    assert len(ends) == len(claims)
