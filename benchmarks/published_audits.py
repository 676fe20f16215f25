"""Trains and audits the runs of docs/results/privacy.md.

  python -m benchmarks.published_audits runs/audits
  python -m benchmarks.published_audits runs/published/audits --published

The first command trains every run, audits it, and continues where it was
stopped; with `--pack` it also writes docs/results/audits.tar.xz. With
`--published` the audits of this archive are unpacked into the folder, and
nothing is trained. Both write the tables of the page into `FOLDER.md`. They
need fedreid_jax[privacy,viz].
"""

import concurrent.futures
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags

from benchmarks import judge_published, publish_runs
from fedreid_jax import errors
from fedreid_jax.apps.audit import member, trace
from fedreid_jax.apps.papers import report
from fedreid_jax.training.files import recorder, run_files, sealed

NAME = 'audits'  # of the archive
PROGRAM = 'fedreid_jax.cli.program'
WORKERS = 2
# Programs beside each other do not divide their work over the same cores.
ONE_DEVICE = {**os.environ, 'JAX_NUM_CPU_DEVICES': '1'}

# Recipes by name of the run.
_SMALL = 'data.height=32,data.width=16,rounds=15,local.steps=20'
_MEMBERS_OF = f'fedpav:synthetic,{_SMALL},model.features=(16,32,64)'
_STUDY = 'privacy.secret=seed'
# Public weights and few trained parameters, as in the recipe.
_MEMBERS_DPSGD = (
  f'dpsgd:synthetic,{_SMALL},data.source=synthetic,data.identities=48,{_STUDY}'
)
_RENDERED = 'dfh:rendered,evaluation.validation=0,rounds=20'
RUNS = {
  'rendered': _RENDERED,
  'rendered_judge': f'{_RENDERED},seed=1',
  'dfh': 'dfh:synthetic',
  'dfh_judge': 'dfh:synthetic,seed=1',
  'dfh_few': 'dfh:synthetic,data.identities=12',
  'smoke': 'dfh:smoke',
  'members': f'{_MEMBERS_OF},data.identities=48',
  'members_few': f'{_MEMBERS_OF},data.identities=12',
  'members_dpsgd': _MEMBERS_DPSGD,
  'members_clipped': f'{_MEMBERS_DPSGD},dpsgd.epsilon=0.0,dpsgd.noise=0.0',
  'dpsgd': f'dpsgd:synthetic,{_STUDY}',
  'dp_fedavg': f'dp_fedavg:synthetic,{_STUDY}',
}


# What the tables call the attempts of audits, in their order.
LABELS = {
  'identity means': 'mean features of persons',
  'DFS': 'statistics that DFH sends',
  'sent': 'the mean as the client sent it',
  'other images': 'attacker with other images of the person',
  'same images': 'attacker with the same images',
  'real feature': 'positive control: features of real images',
  'real': 'real images',
  'permuted DFS': 'negative control: the statistics in random order',
  'noise': 'negative control: noise',
  trace.NEGATIVE: trace.NEGATIVE,
  member.NEGATIVE: member.NEGATIVE,
  'chance': 'chance',
}

Found = Mapping[tuple[str, str], dict[str, Any]]  # by run and audit


class Audit(NamedTuple):
  """An audit of a run."""

  name: str  # of its file
  run: str
  flags: tuple[str, ...]  # '{NAME}' is the work directory of a run
  command: str = 'audit'
  output: str = ''  # file that the command writes, without its '.json'

  def file(self, folder: Path) -> Path:
    """The figures of the audit."""
    return folder / self.run / f'{self.name}.json'


def _inverted(name: str, output: str, *given: str) -> Audit:
  judged = '--judge={rendered_judge}', '--steps=300,150'
  return Audit(name, 'rendered', (*judged, *given), 'invert', output)


def _audited(name: str, run: str, attack: str, *given: str) -> Audit:
  given = f'--attack={attack}', *given
  return Audit(name, run, given, output=f'audit-{attack}')


_STRANGERS = (
  '--set=data.targets=("plaza","campus","station")',
  '--set=data.target_identities=700',
  *('--set=data.target_shots=4', '--set=data.allow_overlap=True'),
)
_FEATURES = _inverted(
  *('identities', 'inversion', '--source=plaza', '--identities=48', '--scale=0')
)
_STATISTICS = _inverted(
  *('statistics', 'inversion-dfs', '--attack=dfs', '--identities=40')
)
_TRACES = (
  _audited('trace', 'dfh', 'trace', *_STRANGERS),
  _audited('trace', 'dfh_few', 'trace', *_STRANGERS),
)
_GRADIENTS = (
  _audited('gradient', 'dfh', 'gradient', '--images=8', '--judge={dfh_judge}'),
  *(
    _audited(
      *(f'gradient_{noise}', 'smoke', 'gradient', '--images=8', '--starts=2'),
      f'--noise={noise}',
    )
    for noise in ('0', '0.01', '0.1')
  ),
)
_MEMBERS = tuple(
  _audited('member', run, 'member')
  for run in ('members_few', 'members', 'members_clipped', 'members_dpsgd')
)
_CANARIES = tuple(
  _audited(f'canary_{seed}', run, 'canary', f'--seed={seed}')
  for run, seeds in (('dpsgd', range(3)), ('dp_fedavg', range(5)))
  for seed in seeds
)
AUDITS = (
  *(_FEATURES, _STATISTICS),
  *(*_TRACES, *_GRADIENTS, *_MEMBERS, *_CANARIES),
)

_PUBLISHED = flags.DEFINE_bool('published', False, 'Use the published audits.')
_PACK = flags.DEFINE_bool('pack', False, 'Write the archive.')


def train(name: str, folder: Path) -> None:
  """Trains a run, or continues it; a finished one is left as it is."""
  _fedreid(folder, name, 'train', RUNS[name], f'--workdir={{{name}}}')


def audit(of_run: Sequence[Audit], folder: Path) -> None:
  """Performs the audits of a run one after another: they share a file."""
  for one in of_run:
    if not one.file(folder).is_file():
      workdir = f'--workdir={{{one.run}}}'
      fine = (0, errors.IntegrityError.exit_code)  # a control may fail
      _fedreid(folder, one.run, one.command, workdir, *one.flags, fine=fine)
      (folder / one.run / f'{one.output}.json').rename(one.file(folder))


def _fedreid(
  folder: Path, run: str, *words: str, fine: Sequence[int] = (0,)
) -> None:
  """Runs a command on a run, and adds its text to `RUN.log`."""
  paths = {name: folder / name for name in RUNS}
  # Recipes and changes have no braces.
  given = [word.format_map(paths) for word in words]
  print(' '.join(['fedreid', *given]), flush=True)
  with (folder / f'{run}.log').open('a') as log:
    command = [sys.executable, '-m', PROGRAM, *given]
    code = subprocess.run(
      command, stdout=log, stderr=log, check=False, env=ONE_DEVICE
    )
  if code.returncode not in fine:
    raise SystemExit(f'exit code {code.returncode} of {" ".join(given)}')


def read(one: Audit, folder: Path) -> dict[str, Any]:
  """The figures of an audit.

  Raises:
    SystemExit: if its figures mean nothing, because a control failed, or if it
      refutes a guarantee.
  """
  found = recorder.read_object(one.file(folder))
  if not found['valid'] or found.get('refuted'):
    why = found['failed'] or found['refuted']
    raise SystemExit(f'{one.file(folder)} cannot be published: {why}')
  return found


def pack(folder: Path) -> None:
  """Writes the configurations, the results and the audits of all runs.

  Names of other runs in the archived audits are relative to the folder.
  """
  files = {
    f'{run}/{name}': (folder / run / name).read_bytes()
    for run in RUNS
    for name in (run_files.CONFIG, recorder.RESULTS)
  }
  for one in AUDITS:
    described = one.file(folder).read_text().replace(f'{folder}/', '')
    entries = sealed.seal(json.loads(described))
    text = json.dumps(entries, indent=2)
    files[f'{one.run}/{one.name}.json'] = f'{text}\n'.encode()
  archive = judge_published.RESULTS / f'{NAME}.tar.xz'
  archive.write_bytes(publish_runs.packed(files))
  publish_runs.record(archive)


def tables(folder: Path) -> str:
  """The tables of the page."""
  found = {(one.run, one.name): read(one, folder) for one in AUDITS}
  parts = (
    _inversions(found['rendered', 'identities'], 'person'),
    _inversions(found['rendered', 'statistics'], 'domain'),
    _detected(
      *(found, _TRACES, 'mean of a client'),
      ('48 persons a client', '12 persons a client'),
    ),
    _gradients(found),
    _detected(
      *(found, _MEMBERS, 'attacker'),
      (
        *('18 of 36 persons', '72 of 144 persons'),
        *('clipped, 72 of 144', 'epsilon 8, 72 of 144'),
      ),
    ),
    _bounds(found),
  )
  return '\n'.join(parts)


def _table(*rows: Sequence[str]) -> str:
  return '\n'.join(report.markdown(rows[0], rows[1:])) + '\n'


def _between(value: float, bounds: Sequence[float], digits: int) -> str:
  low, high = bounds
  return f'{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]'


def _inversions(found: dict[str, Any], question: str) -> str:
  share, bounds = found['rank1'][question], found['intervals'][question]
  rows = [
    (
      label,
      _between(share[name], bounds[name], 1)
      if name in bounds
      else f'{share[name]:.1f}',
    )
    for name, label in LABELS.items()
    if name in share
  ]
  return _table(('attacked', f'right {question}, %'), *rows)


def _detected(
  found: Found, audits: Sequence[Audit], of: str, columns: Sequence[str]
) -> str:
  each = [found[one.run, one.name] for one in audits]
  rows = [
    [label, *(_auc(own['found'][case]) for own in each)]
    for case, label in LABELS.items()
    if case in each[0]['found']
  ]
  rows.append(['positive control', *map(_positive, each)])
  return _table((of, *(f'AUC, {column}' for column in columns)), *rows)


def _auc(one: Mapping[str, Any]) -> str:
  return _between(one['auc'], one['auc_interval'], 3)


def _positive(own: Mapping[str, Any]) -> str:
  """The control of an audit of members, or that of traces beside its theory."""
  if 'positive' in own:
    return _auc(own['positive'])
  return f'{own["simulated"]:.3f}, theory {own["theory"]:.3f}'


def _gradients(found: Found) -> str:
  rows = []
  for one in _GRADIENTS:
    own = found[one.run, one.name]
    persons = own['persons']
    bounds = [100 * x for x in persons['interval']]
    rows.append(
      (
        *(f'`{RUNS[one.run]}`', f'{own["sent"]["noise"]:g}'),
        _between(own['gain'], own['interval'], 1),
        _between(100 * persons['rank1'], bounds, 1),
        f'{100 * persons["real"]:.1f}',
        f'{100 * persons["chance"]:.1f}',
        f'{own["positive" if own["noisy"] is None else "noisy"]:.1f}',
        f'{own["negative"]:.1f}',
      )
    )
  head = (
    *('run', 'noise', 'PSNR above grey, dB', 'right person at rank 1, %'),
    *('real images, %', 'chance, %'),
    *('easy network with this noise, dB', 'negative control, dB'),
  )
  return _table(head, *rows)


def _bounds(found: Found) -> str:
  rows = []
  for run in ('dpsgd', 'dp_fedavg'):
    own = [found[one.run, one.name] for one in _CANARIES if one.run == run]
    bounds = ', '.join(f'{x["bound"]["epsilon"]:.2f}' for x in own)
    positive = min(x['positive']['epsilon'] for x in own)
    negative = max(x['negative'] for x in own)
    others = own[0]['claimed'], positive, negative, own[0]['largest']
    claimed, *controls = (f'{value:.2f}' for value in others)
    rows.append((f'`{RUNS[run]}`', claimed, bounds, *controls))
  head = (
    *('run', 'claim', 'lower bounds', 'positive control, no noise'),
    *('negative control', 'largest bound'),
  )
  return _table(head, *rows)


def main(argv: Sequence[str]) -> None:
  """Trains and audits, or unpacks, and writes the tables."""
  if len(argv) != 2 or (_PUBLISHED.value and _PACK.value):
    raise app.UsageError('give one FOLDER, and --published or --pack')
  folder = Path(argv[1]).absolute()
  folder.mkdir(parents=True, exist_ok=True)
  if _PUBLISHED.value:
    judge_published.unpack(NAME, folder)
  else:
    by_run = [[x for x in AUDITS if x.run == run] for run in RUNS]
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
      list(pool.map(lambda run: train(run, folder), RUNS))
      list(pool.map(lambda audits: audit(audits, folder), by_run))
  text = tables(folder)
  if _PACK.value:
    pack(folder)
  folder.with_name(f'{folder.name}.md').write_text(text)
  print(text)


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
