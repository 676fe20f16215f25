"""Check a component: `fedreid check-component NAME [--beside=NAME,...]`.

NAME is a module outside the package ('mypkg.my_rule'), an entry point, or a
component of the package. The command runs two rounds of a toy federation with
it and prints one line for every check. The components of the package pass the
same checks:

  fedreid check-component mypkg.my_rule
  fedreid check-component mypkg.my_noise --beside=fedpav,fedprox

The exit code is 0 if no check fails, and 2 otherwise. A warning is no failure.
"""

import os

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

_BESIDE = flags.DEFINE_list(
  'beside', [], 'Components before it; by default fedpav if it shares nothing.'
)


def main(argv: list[str]) -> None:
  """Prints a line for every check."""

  def body():
    if len(argv) != 2:
      raise errors.ConfigError(
        f'{len(argv) - 1} names of components',
        'command line',
        'give one, as in fedreid check-component mypkg.my_rule',
      )
    from fedreid_jax.training import contract

    failed = 0
    for finding in contract.check(argv[1], _BESIDE.value):
      failed += bool(finding.problem) and finding.serious
      result = 'failed' if finding.serious else 'warning'
      text = f'{result:<8} {finding.check}: {finding.problem}'
      if not finding.problem:
        text = f'{"ok":<8} {finding.check}'
      print(errors.folded(errors.printable(text)), flush=True)
    if failed:
      raise errors.ConfigError(
        f'failed checks: {failed}', argv[1], 'change the component'
      )

  # One check compares placements on two devices. JAX reads the number when it
  # starts, which `guarded` does.
  os.environ.setdefault('JAX_NUM_CPU_DEVICES', '2')
  run.guarded(argv[:1], body)
