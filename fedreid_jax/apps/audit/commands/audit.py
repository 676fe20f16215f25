r"""Measure what a run reveals: `fedreid audit --workdir=DIR --attack=NAME`.

  fedreid audit --workdir=DIR --attack=gradient --judge=DIR2
  fedreid audit --workdir=DIR --attack=trace \
    --set='data.targets=("plaza","campus","station")' \
    --set=data.target_identities=700 --set=data.target_shots=4 \
    --set=data.allow_overlap=True

  gradient  Reconstruct images from their gradients, and write a picture of
            both, `audit-gradient.png`. It needs fedreid_jax[viz].
  trace     Decide whether a person belongs to a client, from the mean that the
            client of DFH sent. It needs persons of the clients' domains whom no
            client has, with as many images each: those of
            `evaluation.validation`, or of targets as above.
  member    Decide whether the model was trained on a person, with models that
            are trained like the run, each on half of the persons. It takes as
            long as `--shadows` runs, and continues when it is started again.
  canary    Compute a lower bound of the epsilon of DP-FedAvg or DP-SGD, from
            artificial clients in the aggregation of the run, or artificial
            persons in its steps. It needs fedreid_jax[privacy].
  noise     Recover the noise of DP-FedAvg or DP-SGD by guesses of the number
            from which it is generated.

An audit has a positive control, where the attack must succeed, and a negative
control, where it must not. If a control fails, the figures mean nothing: the
command prints `audit invalid` and exits with code 4. It writes
`audit-ATTACK.json` in the work directory, and `fedreid report` explains the
results in words.
"""

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

_ATTACK = flags.DEFINE_enum(
  'attack',
  None,
  ['gradient', 'trace', 'member', 'canary', 'noise'],
  'The attack.',
)
_SOURCE = flags.DEFINE_string(
  'source', '', 'gradient: name of the client (default: the first).'
)
_JUDGE = flags.DEFINE_string(
  'judge',
  '',
  'gradient: work directory of the run that judges who a reconstruction shows '
  '(default: the run itself).',
)
_IMAGES = flags.DEFINE_integer(
  'images', 4, 'gradient: number of images, one of each person.', 2
)
_BATCH = flags.DEFINE_integer(
  'batch', 1, 'gradient: number of images of each gradient.', 1
)
_NOISE = flags.DEFINE_float(
  'noise',
  0.0,
  'gradient: standard deviation of the noise over the clip, as in a step of '
  'DP-SGD (default: neither clip nor noise).',
  0.0,
)
_STEPS = flags.DEFINE_integer('steps', 800, 'gradient: steps of each start.', 8)
_STARTS = flags.DEFINE_integer('starts', 3, 'gradient: number of starts.', 1)
_SHADOWS = flags.DEFINE_integer(
  'shadows', 16, 'member: number of models that are trained.', 4, 1000
)
_GUESSES = flags.DEFINE_integer(
  'guesses', 4096, 'noise: number of seeds that are tried.', 1, 2**31
)
_CHECKPOINT = run.define_checkpoint()
_CHANGES = run.define_set()
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Random seed of the audit.', 0, 2**31 - 1
)


class _Report(NamedTuple):
  """Results of an attack: lines for users, and entries of the file."""

  lines: list[str]
  entries: dict[str, Any]
  failed: tuple[str, ...]  # controls
  refuted: str = ''  # how a claim is refuted, if it is
  scratch: Path | None = None  # folder that is deleted after a valid audit


def main(argv: list[str]) -> None:
  """Prints the figures of an attack and writes `audit-ATTACK.json`."""

  def body():
    workdir = run.given_workdir()
    if _ATTACK.value is None:
      raise errors.ConfigError(
        'no attack', '--attack', f'one of {", ".join(_AUDITS)}'
      )
    config = run.saved_config(workdir, _CHANGES.value)
    # JAX is imported after the checks of flags, so that mistakes show at once.
    from fedreid_jax.training import loaded_run
    from fedreid_jax.training.files import recorder

    file = workdir / f'audit-{_ATTACK.value}.json'
    attacked = loaded_run.load(config, workdir, _CHECKPOINT.value)
    start = time.perf_counter()
    report = _AUDITS[_ATTACK.value](attacked, file.with_suffix('.png'))
    print(errors.folded('\n'.join(report.lines)))
    entries = report.entries | {
      'attack': _ATTACK.value,
      'valid': not report.failed,
      'failed': list(report.failed),
      'seed': _SEED.value,
      'step': attacked.step,
      'seconds': time.perf_counter() - start,
    }
    # The file is written before the errors, which refer to it.
    recorder.write_sealed(file, entries)
    print(file)
    if report.failed:
      raise errors.invalid_audit(report.failed, file)
    if report.scratch:
      shutil.rmtree(report.scratch)
    if report.refuted:
      raise errors.IntegrityError(
        f'the guarantee does not hold: {report.refuted}',
        str(file),
        errors.REPORT,
      )

  run.guarded(argv, body)


def _gradient(attacked: Any, picture: Path) -> _Report:
  from fedreid_jax.apps.audit import gradient
  from fedreid_jax.apps.audit.gradient_search import Search, Sent
  from fedreid_jax.figures import canvas
  from fedreid_jax.training import loaded_run

  # A missing package or an unwritable file shows before the attack, not after.
  canvas.check(picture)
  client = attacked.client(_SOURCE.value)
  search = Search(_STEPS.value, _STARTS.value, seed=_SEED.value)
  judge = attacked
  if _JUDGE.value:
    folder = Path(_JUDGE.value).expanduser().absolute()
    judge = loaded_run.load(run.saved_config(folder, []), folder)
    loaded_run.same_images(attacked, judge, '--judge')
  if _BATCH.value > _IMAGES.value:
    raise errors.ConfigError(
      f'{errors.counted(_BATCH.value, "image")} of a gradient, '
      f'{_IMAGES.value} in all',
      '--batch',
      'give at most --images',
    )
  sent = Sent(_BATCH.value, _NOISE.value)
  found = gradient.audit(attacked, client, _IMAGES.value, search, judge, sent)
  low, high = found.interval
  persons = found.persons
  least, most = (100 * bound for bound in persons.interval)
  lines = [
    f'{client.name}, {errors.counted(len(found.gains), "image")}, gradients of '
    f'{sent.images}, noise {sent.noise:g}: PSNR {found.gain:.1f} dB above grey '
    f'[{low:.1f}, {high:.1f}]',
    f'right person at rank 1: {100 * persons.rank1:.1f} % [{least:.1f}, '
    f'{most:.1f}], real images {100 * persons.real:.1f} %, chance '
    f'{100 * persons.chance:.1f} %',
    f'positive control, network of sigmoids: {found.positive:.1f} dB',
    f'negative control, random gradient: {found.negative:.1f} dB',
  ]
  if found.noisy is not None:
    lines.append(f'the network of sigmoids with noise: {found.noisy:.1f} dB')
  title = f'{attacked.config.name}, {client.name}: PSNR above grey'
  canvas.save(gradient.draw(found, title), picture)
  images = 'originals', 'found', 'control', 'random'
  described = {k: v for k, v in run.plain(found).items() if k not in images}
  described |= {
    'source': client.name,
    'judge': _JUDGE.value or str(run.given_workdir()),
    'search': search._asdict(),
    'sent': sent._asdict(),
  }
  return _Report([*lines, str(picture)], described, found.failed)


def _trace(attacked: Any, _: Path) -> _Report:
  from fedreid_jax.apps.audit import trace

  found = trace.audit(attacked, _SEED.value)
  lines = [f'{case}: {one.text()}' for case, one in found.found.items()]
  lines += [
    f'positive control, {found.dimensions} isotropic dimensions: AUC '
    f'{found.simulated:.3f}, theory {found.theory:.3f}',
    f'the features have {found.effective:.1f} effective dimensions: theory '
    f'{found.expected:.3f}',
  ]
  return _Report(lines, run.plain(found), found.failed)


def _member(attacked: Any, picture: Path) -> _Report:
  from fedreid_jax.apps.audit import member

  # The digest and the seed keep models of another configuration apart, which
  # cannot continue this audit.
  name = f'audit-member-{run.digest(attacked.config)}-{_SEED.value}'
  folder = picture.parent / name
  found = member.audit(attacked, folder, _SHADOWS.value, _SEED.value)
  lines = [f'{case}: {one.text()}' for case, one in found.found.items()]
  if found.left_out:
    lines.append(f'{found.left_out} pairs of a person and a model are left out')
  lines.append(
    'positive control, persons learnt by heart: ' + found.positive.text()
  )
  described = run.plain(found) | {'changes': list(_CHANGES.value)}
  return _Report(lines, described, found.failed, scratch=folder)


def _canary(attacked: Any, _: Path) -> _Report:
  from fedreid_jax.apps.audit import canary_runs
  from fedreid_jax.core import secret
  from fedreid_jax.method import accounting

  found = canary_runs.of_run(attacked.config, attacked.federation, _SEED.value)
  bound = found.bound
  study = attacked.config.privacy.secret == 'seed'
  claimed = accounting.text(found.claimed, found.delta)
  lines = [
    f'claimed: {claimed}' + (f'; {secret.STUDY}' if study else ''),
    f'lower bound: epsilon >= {accounting.below(bound.epsilon)} with 95 % '
    f'confidence ({bound.right} of {bound.guesses} guesses about '
    f'{bound.canaries} canaries are right)',
    f'positive control, no noise: {found.positive.epsilon:.3f}; the largest '
    f'bound of so many guesses is {found.largest:.3f}',
    f'negative control, permuted scores: {found.negative:.3f}',
  ]
  if found.claimed >= found.largest:
    lines.append(
      'the claim is above the largest bound, so that the audit cannot refute it'
    )
  refuted = found.refuted
  if refuted and study:
    refuted += f'; {secret.STUDY}'
  return _Report(
    lines, run.plain(found) | {'study': study}, found.failed, refuted
  )


def _noise(attacked: Any, picture: Path) -> _Report:
  from fedreid_jax.apps.audit import noise_audit

  found = noise_audit.audit(attacked, picture.parent, _GUESSES.value)
  days = found.all_seeds_s / 86400
  verdict = f'no seed of {found.guesses} explains the noise'
  if found.recovered:
    verdict = (
      f'the noise is that of seed {found.best}: it explains '
      f'{100 * found.explained:.0f} % of the change of the model, and whoever '
      'guesses the seed can subtract it'
    )
  lines = [
    f'{verdict} (largest score {found.score:.1f} at {found.coordinates} '
    f'coordinates, threshold {found.threshold:.1f}; all 2^31 seeds take '
    f'{days:.2g} days on this machine)',
    f'positive control, secret of the run: score {found.positive:.1f}',
    f'negative control, random secrets: score {found.negative:.1f}',
  ]
  described = found._asdict() | {'recovered': found.recovered}
  return _Report(lines, described, found.failed, found.refuted)


_AUDITS = {
  'gradient': _gradient,
  'trace': _trace,
  'member': _member,
  'canary': _canary,
  'noise': _noise,
}
