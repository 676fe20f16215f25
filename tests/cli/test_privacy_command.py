"""`fedreid privacy plan`, as a program, and as a run of `dpsgd` has it."""

import commands
import pytest
import toy
from private_clients import bound, participants

from fedreid_jax.algorithms import dpsgd, fedpav
from fedreid_jax.method import accounting, guarantee
from fedreid_jax.method.accounting import Mechanism

pytest.importorskip('dp_accounting', reason='pip install .[privacy]')

CLIENT = ('--identities=48', '--batch-identities=8', '--steps=200')


def plan(*flags):
  return commands.launch_program('privacy', 'plan', *flags)


def people(identities, expected, steps):
  """Returns one client of a run with one round."""
  return participants(
    (toy.toy_client('a', 2 * identities, identities),),
    identities=expected, batch=2 * expected, steps=steps,
  )  # fmt: skip


def number(out, name):
  return float(out.split(name)[1].split()[0])


@pytest.mark.slow
def test_the_noise_that_an_epsilon_takes():
  code, out, err = plan('--epsilon=8', '--delta=1e-5', *CLIENT)
  assert (code, err) == (0, '')
  assert 'probability 0.1667 in each of 200 steps' in out
  assert number(out, 'noise: ') == pytest.approx(1.6583, abs=5e-4)
  assert 'at delta = 1e-05 per identity' in out
  assert 7.98 < number(out, 'epsilon = ') <= 8


@pytest.mark.slow
def test_the_printed_noise_given_again_keeps_to_the_epsilon():
  """With six digits, 258.358 in place of 258.3585, it does not."""
  one = ('--identities=1', '--batch-identities=1', '--steps=20')
  code, out, err = plan('--epsilon=0.05', *one)
  assert (code, err) == (0, '')
  noise = out.split('noise: ')[1].split()[0]
  assert '.' in noise and len(noise) > len('258.358')
  found = accounting.epsilon([Mechanism(float(noise), 1.0, 20)], 1e-5)
  assert 0.0499 < found <= 0.05
  code, out, err = plan(f'--noise={noise}', *one)
  assert (code, err) == (0, '')
  assert 0.0499 < number(out, 'epsilon = ') <= 0.05
  assert 'warning: a client has a single identity' in out
  assert 'warning: every identity of a client is in every step' in out


@pytest.mark.slow
def test_the_noise_is_that_of_a_run_of_dpsgd():
  code, out, err = plan(
    '--epsilon=1', '--delta=1e-3', '--identities=12', '--batch-identities=2',
    '--steps=20',
  )  # fmt: skip
  assert (code, err) == (0, '')
  noise, run = number(out, 'noise: '), people(12, 2, 20)
  options = dpsgd.Options(epsilon=1.0, delta=1e-3)
  assert noise == dpsgd.noise_of(options, run)
  made = bound(run, noise=noise, delta=1e-3)
  assert guarantee.Guarantee((fedpav.make(), made), run).epsilon(1) <= 1


@pytest.mark.slow
def test_the_epsilon_is_that_of_a_run_of_dpsgd():
  code, out, err = plan('--noise=2', *CLIENT)
  assert (code, err) == (0, '')
  run = people(48, 8, 200)
  found = guarantee.Guarantee((fedpav.make(), bound(run, noise=2.0)), run)
  assert number(out, 'epsilon = ') == pytest.approx(found.epsilon(1), rel=1e-3)
  assert out.splitlines()[-1].split(' per ')[0] in found.statement(1)


@pytest.mark.parametrize(
  'flags, line',
  [
    (
      ('--noise=2',),
      '200 steps, at\n  most 16 in a step\nnoise: 2 times the clip\n'
      'epsilon = 6.134 at delta = 1e-05 per identity',
    ),
    (('--noise=0',), f'noise: 0 times the clip\n{accounting.NONE}\n'),
    (
      ('--noise=2', '--statistics-noise=10', '--releases=21', '--places=0'),
      'statistics of DFH: 21 times with noise 10\nepsilon = 6.385',
    ),
    pytest.param(
      ('--noise=1', '--clients=2', '--places=0'),
      'epsilon = 26.5 at delta = 1e-05 per identity in up to 2 clients\n'
      'epsilon above 20 gives no meaningful protection',
      marks=pytest.mark.slow,
    ),
  ],
)
def test_the_epsilon_that_a_noise_gives(flags, line):
  code, out, err = plan(*flags, *CLIENT)
  assert (code, err) == (0, '') and line in out, out
  assert not (accounting.NONE in out and accounting.TOO_WEAK in out)


@pytest.mark.parametrize(
  'flags, message',
  [
    ((), '--epsilon, --noise'),
    (('--noise=1', '--epsilon=8'), '--epsilon, --noise'),
    (('--noise=1', '--delta=0.01'), 'give at most 0.002083'),
    (('--noise=1', '--batch_identities=49'), 'twice'),
    (('--epsilon=-1',), 'epsilon'),
    (('--noise=1', '--places=15'), 'give at least 16, or 0 for no limit'),
    (('--noise=1', '--releases=21'), 'give both of them'),
    (('--noise=nan',), 'not finite — --noise'),
    (('--noise=1', '--statistics-noise=inf'), '--statistics_noise'),
    (
      ('--epsilon=1', '--statistics-noise=2', '--releases=21'),
      'the statistics alone have epsilon = ',
    ),
  ],
)
def test_errors_are_one_line(flags, message):
  code, _, err = plan(*CLIENT, *flags)
  assert code == 2 and len(err.splitlines()) == 1 and message in err, err
