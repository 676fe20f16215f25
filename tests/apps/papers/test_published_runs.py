"""The claims in docs/results/claims.md, judged from the published runs."""

import tarfile
from pathlib import Path

import pytest

from fedreid_jax.apps.papers.claims import CLAIMS
from fedreid_jax.apps.papers.runs import study, trials

DOCS = Path(__file__).parents[3] / 'docs'


@pytest.mark.slow
def test_published_runs_have_the_published_effects(tmp_path):
  with tarfile.open(DOCS / 'results' / 'claims.tar.xz') as archive:
    archive.extractall(tmp_path, filter='data')
  page = (DOCS / 'results' / 'claims.md').read_text()
  planned = trials.plan(CLAIMS.values(), range(5), tmp_path)
  judged = 0
  for name, claim in CLAIMS.items():
    ended = trials.ended(planned[name])
    if len(ended) < 3:  # the page has three seeds of other runs
      continue
    own = [trial for trial in planned[name] if trial.seed in ended]
    one = study.judge(claim, own)
    assert one.found
    row = (
      f'| {one.base:.1f} | {one.arm:.1f} '
      f'| {one.found.mean:+.1f} [{one.found.low:+.1f}, {one.found.high:+.1f}] '
      f'| {one.found.detectable:.1f} | {one.verdict} |'
    )
    assert row in page, name
    judged += 1
  assert judged
