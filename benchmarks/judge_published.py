"""Judges the published runs of claims.

  python -m benchmarks.judge_published runs/published

Unpacks the archives in docs/results/ into the folder, and writes the tables and
pictures of its pages there. By page, `unseen`, `claims` and `privacy`, these
are `PAGE.md`, `PAGE.json`, `PAGE_targets.md` and `PAGE.png`, for `unseen` also
`unseen_benchmark.png`, and by archive `ARCHIVE_rates.md` and
`ARCHIVE_equal.md`. Nothing is trained. The verdicts have Holm's correction for
all claims of a paper.
"""

import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedreid_jax.apps.papers import planning, study
from fedreid_jax.apps.papers.tables.declare import RATES, Claim
from fedreid_jax.apps.papers.tables.index import CLAIMS

RESULTS = Path(__file__).parents[1] / 'docs' / 'results'
# The rates of searches from weights of ImageNet.
FEW_RATES = '0.01', '0.02', '0.05'


def unpack(name: str, folder: Path) -> None:
  """Writes the files of an archive into a folder."""
  with tarfile.open(RESULTS / f'{name}.tar.xz') as archive:
    archive.extractall(folder, filter='data')


class Archive(NamedTuple):
  """Runs that were planned together."""

  name: str  # of `docs/results/NAME.tar.xz`
  page: str  # of `docs/results/PAGE.md`, which has their effects
  claims: Sequence[str]
  rates: Sequence[str]  # of every search
  seeds: int  # from 0 on

  def tried(self) -> list[Claim]:
    """The claims."""
    return [CLAIMS[name] for name in self.claims]

  def plan(self, folder: Path) -> planning.Plan:
    """The runs of the claims, in a folder."""
    grid = planning.Grid(self.rates)
    return planning.plan(self.tried(), range(self.seeds), folder, (), grid)


_ARCHIVES = (
  Archive(
    name='rendered',
    page='unseen',
    claims=('rendered_dfh',),
    rates=RATES,
    seeds=5,
  ),
  Archive(
    name='random',
    page='unseen',
    claims=('random_dfh',),
    # FedPav chose the largest of 0.02, 0.05 and 0.1 on a route, and DFH the
    # smallest.
    rates=(*RATES[1:], '0.2'),
    seeds=3,
  ),
  Archive(
    name='first_world',
    page='unseen',
    claims=('first_world_dfh',),
    # FedPav chose the largest of the rates on every route.
    rates=(*RATES, '0.2'),
    seeds=5,
  ),
  Archive(
    name='imagenet',
    page='unseen',
    claims=tuple(
      f'imagenet_{x}'
      for x in ('snr', 'mixstyle', 'crossstyle', 'ccst', 'fedsr')
    ),
    rates=FEW_RATES,
    seeds=3,
  ),
  Archive(
    name='learned_style',
    page='unseen',
    claims=('imagenet_dacs', 'imagenet_sscu'),
    # DACS chose the smallest of the few rates on every route.
    rates=('0.005', *FEW_RATES),
    seeds=3,
  ),
  Archive(
    name='imagenet_dfh',
    page='unseen',
    claims=('imagenet_dfh', 'imagenet_snr_dfh'),
    # DFH diverges or learns nothing at the few rates, and SNR + DFH as well.
    rates=('0.00003', '0.0001', '0.0003', '0.001', *FEW_RATES),
    seeds=3,
  ),
  Archive(
    name='private',
    page='privacy',
    claims=(
      *('private_8', 'private_1'),
      *('first_world_private_8', 'first_world_private_1'),
    ),
    # The best rates depend on epsilon. The grid began as 0.0005 to 0.5.
    rates=('0.0001', '0.0005', '0.002', '0.01', '0.1', '0.5', '2.0'),
    seeds=3,
  ),
  Archive(
    name='claims',
    page='claims',
    claims=(
      *('local', 'local_or_alone', 'small_clients', 'cdw', 'upper_bound'),
      'fednova',
    ),
    # Three of five methods chose the smallest of the few rates.
    rates=('0.002', '0.005', *FEW_RATES),
    seeds=3,
  ),
  Archive(
    name='others',
    page='claims',
    # The first is not searched: clients without labels hold out no persons.
    claims=('fed_protoid', 'published_start'),
    rates=FEW_RATES,
    seeds=3,
  ),
)
ARCHIVES = {one.name: one for one in _ARCHIVES}


def write(folder: Path) -> dict[str, list[study.Judged]]:
  """Writes the tables and the pictures, and returns the claims by page."""
  judged: dict[str, list[study.Judged]] = {}
  for one in ARCHIVES.values():
    runs = folder / one.name
    runs.mkdir(parents=True, exist_ok=True)
    unpack(one.name, runs)
    planned, claims = one.plan(runs), one.tried()
    found = [study.judge(c, planned.trials[c.name]) for c in claims]
    judged.setdefault(one.page, []).extend(found)
    study.write_rates(folder / one.name, planned, claims)
  for page, own in judged.items():
    study.write(folder / page, own)
  return judged


def main(argv: Sequence[str]) -> None:
  """Writes the tables and the pictures, and prints the tables."""
  folder = Path(argv[1])
  for page in write(folder):
    print((folder / f'{page}.md').read_text())


if __name__ == '__main__':
  main(sys.argv)
