"""Measure what a run gives away: `fedreid audit --workdir=DIR --attack=NAME`.

  fedreid audit --workdir=DIR --attack=trace \
    --set='data.targets=("plaza","campus","station")' \
    --set=data.target_identities=400 --set=data.allow_overlap=True

  trace  whether a person is among those of a client, from the mean that the
         client of DFH sent. It needs persons of the clients' domains whom no
         client has: those of `evaluation.validation`, or of targets.
  canary  a lower bound of the epsilon of DP-FedAvg, from artificial clients in
         the aggregation of the run. It needs fedreid_jax[privacy].

An audit has a positive control, where the attack must succeed, and a negative
one, where it must not. If a control fails, the figures mean nothing: the
command prints `audit invalid` and exits with code 4. It writes
`audit-ATTACK.json` in the work directory.
"""

import time

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

ATTACKS = ('trace', 'canary')
_ATTACK = flags.DEFINE_enum('attack', None, ATTACKS, 'The attack.')
_CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  'latest',
  "Checkpoint: 'latest', 'best' or the number of a step.",
)
_SET = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE; changes a field of the configuration.'
)
_SEED = flags.DEFINE_integer('seed', 0, 'Random seed of the audit.', 0)


def main(argv: list[str]) -> None:
  """Prints the figures of an attack and writes `audit-ATTACK.json`."""

  def body():
    workdir = run.given_workdir()
    if _ATTACK.value is None:
      raise errors.ConfigError(
        'no attack', '--attack', f'one of {", ".join(ATTACKS)}'
      )
    config = run.saved_config(workdir, _SET.value)
    from fedreid_jax.training import loaded_run, recorder

    attacked = loaded_run.load(config, workdir, _CHECKPOINT.value)
    start = time.perf_counter()
    lines, described, failed = _AUDITS[_ATTACK.value](attacked)
    for line in lines:
      print(line)
    described |= {
      'attack': _ATTACK.value,
      'valid': not failed,
      'failed': list(failed),
      'seed': _SEED.value,
      'step': attacked.step,
      'seconds': time.perf_counter() - start,
    }
    file = workdir / f'audit-{_ATTACK.value}.json'
    recorder.write_json(file, described)
    print(file)
    if failed:
      raise errors.IntegrityError(
        f'audit invalid: {"; ".join(failed)}',
        str(file),
        'do not use its figures',
      )

  run.guarded(argv, body)


def _trace(attacked):
  """Returns (lines for users, entries of the file, failed controls)."""
  from fedreid_jax.privacy import trace_audit

  found = trace_audit.audit(attacked, _SEED.value)
  lines = [f'{case}: {one.text()}' for case, one in found.found.items()]
  lines += [
    f'positive control, {found.dimensions} isotropic dimensions: AUC '
    f'{found.simulated:.3f}, theory {found.theory:.3f}',
    f'the features have {found.effective:.1f} effective dimensions: theory '
    f'{found.expected:.3f}',
  ]
  described = found._asdict() | {
    'found': {case: one._asdict() for case, one in found.found.items()}
  }
  return lines, described, found.failed


def _canary(attacked):
  """Returns (lines for users, entries of the file, failed findings)."""
  from fedreid_jax.algorithms import dp_fedavg
  from fedreid_jax.core import guarantee
  from fedreid_jax.privacy import canary_audit
  from fedreid_jax.training import build, engine

  config = attacked.config
  if dp_fedavg.NAME not in config.components:
    raise errors.ConfigError(
      f'{config.name} has no guarantee',
      '--attack',
      'give a run with the component dp_fedavg',
    )
  people = engine.participants_of(config, attacked.federation)
  components = engine.bound(build.load_components(config), people)
  claim = guarantee.Guarantee(components, people)
  options = dp_fedavg.Options(**build.arguments(config, dp_fedavg.NAME))
  found = canary_audit.audit(
    options, people, claim.epsilon(config.rounds), _SEED.value
  )
  bound = found.bound
  lines = [
    f'claimed: epsilon = {found.claimed:.4g} at delta = {found.delta:g}',
    f'lower bound: epsilon >= {bound.epsilon:.3f} with 95 % confidence '
    f'({bound.right} of {bound.guesses} guesses about {bound.canaries} '
    'canaries are right)',
    f'positive control, no noise: {found.positive.epsilon:.3f}; the largest '
    f'bound of so many guesses is {found.largest:.3f}',
    f'negative control, permuted scores: {found.negative:.3f}',
  ]
  described = found._asdict() | {
    name: getattr(found, name)._asdict() for name in ('bound', 'positive')
  }
  return lines, described, found.failed


_AUDITS = {'trace': _trace, 'canary': _canary}
