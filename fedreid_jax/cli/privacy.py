"""Plan a guarantee of differential privacy: `fedreid privacy plan --flags`.

  fedreid privacy plan --epsilon=8 --identities=48 --batch-identities=8 \\
    --steps=200
  fedreid privacy plan --noise=1.66 --identities=48 --batch-identities=8 \\
    --steps=200

The first command prints the smallest noise for an epsilon, the second one the
epsilon for a noise. Nothing is trained. The unit of privacy is one person in
one client: in every step each of the client's identities is sampled
independently with the probability batch identities / identities, the gradient
of each is clipped, and Gaussian noise is added to their sum. The epsilon is of
noise in real numbers: attacks on the rounding of float32 noise are not covered
(docs/privacy.md).

The numbers are those of a run of `dpsgd`, which has places for twice the batch
identities in a step. `--places=0` assumes a sampler without such a limit, whose
epsilon is smaller.

With `--statistics_noise` (`dfh.noise`) and `--releases`, the client also sends
statistics of DFH. A run has 1 + rounds / `dfh.every` releases, rounded down.
"""

import sys
from collections.abc import Callable

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run
from fedreid_jax.method import accounting, poisson

_EPSILON = flags.DEFINE_float(
  'epsilon', None, 'Largest epsilon; prints the noise that it takes.', 1e-3
)
_NOISE = flags.DEFINE_float(
  'noise', None, 'Noise over clip; prints the epsilon that it gives.', 0.0
)
_DELTA = flags.DEFINE_float(
  'delta', 1e-5, 'Delta of the guarantee.', 1e-300, 0.5
)
_IDENTITIES = flags.DEFINE_integer(
  'identities', None, 'Identities of the client.', 1
)
_BATCH = flags.DEFINE_integer(
  'batch_identities', None, 'Expected number of identities in a step.', 1
)
_PLACES = flags.DEFINE_integer(
  'places',
  None,
  'Largest number of identities in a step, at least twice --batch-identities '
  '(default: twice, as in dpsgd); 0 is no limit.',
  0,
)
_STEPS = flags.DEFINE_integer(
  'steps', None, 'Steps of the client in the whole run.', 1
)
_CLIENTS = flags.DEFINE_integer(
  'clients', 1, 'Clients that may have the same person.', 1
)
_STATISTICS = flags.DEFINE_float(
  'statistics_noise', 0.0, 'Noise on statistics of DFH, 0 without them.', 0.0
)
_RELEASES = flags.DEFINE_integer(
  'releases', 0, 'Number of times that the client sends statistics.', 0
)


def main(argv: list[str]) -> None:
  """Prints the plan of the subcommand `plan`."""

  def body():
    if argv[1:] != ['plan']:
      raise errors.ConfigError(
        f'no command {" ".join(argv[1:])!r}', 'command line', 'plan'
      )
    _check()
    for line in _plan(_required(_IDENTITIES), _required(_BATCH)):
      print(errors.folded(line))

  run.guarded(argv[:1], body, with_jax=False)


def _required(flag: flags.FlagHolder[int | None]) -> int:
  if flag.value is None:
    name = flag.name.replace('_', '-')
    raise errors.ConfigError('not given', f'--{name}', 'give a number')
  return flag.value


def _check() -> None:
  identities, batch = _required(_IDENTITIES), _required(_BATCH)
  _required(_STEPS)
  if (_EPSILON.value is None) == (_NOISE.value is None):
    raise errors.ConfigError(
      'both or none of two flags', '--epsilon, --noise', 'give one of them'
    )
  if batch > identities:
    raise errors.ConfigError(
      f'{_people(batch)} in a step, but the client has {identities}',
      '--batch-identities',
      'give at most --identities',
    )
  # With fewer places the search for a noise may start in the wrong range.
  if _PLACES.value and _PLACES.value < 2 * batch:
    raise errors.ConfigError(
      f'{errors.counted(_PLACES.value, "place")} for {_people(batch)} on '
      'average',
      '--places',
      f'give at least {2 * batch}, or 0 for no limit',
    )
  # A mechanism that publishes each person with probability delta has epsilon 0:
  # a delta near 1 / identities would allow it to publish whole persons.
  largest = 1 / (10 * identities)
  if _DELTA.value > largest:
    raise errors.ConfigError(
      f'{accounting.exact(_DELTA.value)} is above 1 / (10 x '
      f'{_people(identities)})',
      '--delta',
      # Rounded down, so that the printed number is accepted.
      f'give at most {accounting.below(largest)}',
    )
  if bool(_STATISTICS.value) != bool(_RELEASES.value):
    raise errors.ConfigError(
      'one of two flags', '--statistics-noise, --releases', 'give both of them'
    )


def _plan(identities: int, batch: int) -> list[str]:
  steps, delta = _required(_STEPS), _DELTA.value
  sent: list[accounting.Mechanism] = []
  if _RELEASES.value:
    # Statistics are computed from all images of a client: their sampling
    # probability is 1.
    sent = [accounting.Mechanism(_STATISTICS.value, 1.0, _RELEASES.value)]

  def mechanisms(noise: float) -> list[accounting.Mechanism]:
    own = poisson.mechanisms(noise, identities, batch, steps, _PLACES.value)
    # One person in several clients takes part in the mechanisms of each.
    return [*own, *sent] * _CLIENTS.value

  if sys.stderr.isatty():
    print(
      'computing the guarantee: seconds, with other flags minutes',
      file=sys.stderr,
    )
  noise = _NOISE.value
  if noise is None:
    noise = _noise(mechanisms, sent * _CLIENTS.value)
  epsilon = accounting.epsilon(mechanisms(noise), delta)
  limit = mechanisms(noise)[0].places
  lines = [
    f'sampling: each of {_people(identities)} with probability '
    f'{batch / identities:.4g} in each of {errors.counted(steps, "step")}'
    + (f', at most {limit} in a step' if limit else ''),
    f'noise: {accounting.exact(noise)} times the clip',
  ]
  if sent:
    lines.append(
      f'statistics of DFH: {errors.counted(_RELEASES.value, "time")} with '
      f'noise {accounting.exact(_STATISTICS.value)}'
    )
  lines += _guarantee(epsilon)
  few = poisson.hidden_by_few(identities, batch, 'identity')
  return [*lines, *(f'warning: {text}' for text in few)]


def _people(number: int) -> str:
  return errors.counted(number, 'identity', 'identities')


def _noise(
  mechanisms: Callable[[float], list[accounting.Mechanism]],
  sent: list[accounting.Mechanism],
) -> float:
  """The noise for --epsilon, which the statistics must not reach."""
  target, delta = _EPSILON.value, _DELTA.value
  assert target is not None
  alone = accounting.epsilon(sent, delta) if sent else 0.0
  # No noise on gradients can make up for it.
  if alone >= target:
    raise errors.ConfigError(
      f'the statistics alone have epsilon = {accounting.above(alone)}',
      '--statistics-noise',
      'raise it, or send them less often',
    )
  return accounting.multiplier(mechanisms, target, delta)


def _guarantee(epsilon: float) -> list[str]:
  if epsilon == float('inf'):
    return [accounting.NONE]
  unit = 'per identity'
  if _CLIENTS.value > 1:
    unit = f'per identity in up to {_CLIENTS.value} clients'
  line = f'{accounting.text(epsilon, _DELTA.value)} {unit}'
  return [line, accounting.TOO_WEAK] if epsilon > accounting.WEAK else [line]
