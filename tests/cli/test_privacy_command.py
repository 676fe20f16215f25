"""`fedreid privacy plan`, as a program."""

import commands
import pytest

pytest.importorskip('dp_accounting', reason='pip install .[privacy]')

CLIENT = ('--identities=48', '--batch-identities=8', '--steps=200')


def plan(*flags):
  return commands.launch_program('privacy', 'plan', *flags)


@pytest.mark.slow
def test_the_noise_that_an_epsilon_takes():
  code, out, err = plan('--epsilon=8', '--delta=1e-5', *CLIENT)
  assert (code, err) == (0, '')
  assert 'probability 0.1667 in each of 200 steps' in out
  assert 'noise: 1.62' in out
  assert 'at delta = 1e-05 per identity' in out
  epsilon = float(out.split('epsilon = ')[1].split()[0])
  assert 7.98 < epsilon <= 8


@pytest.mark.parametrize(
  'flags, line',
  [
    (('--noise=2',), 'epsilon = 5.98 at delta = 1e-05 per identity'),
    (('--noise=0',), 'no differential privacy'),
    (
      ('--noise=2', '--statistics-noise=10', '--releases=21'),
      'statistics of DFH: 21 times with noise 10\nepsilon = 6.38',
    ),
    (
      ('--noise=1', '--clients=2'),
      'epsilon = 26.5 at delta = 1e-05 per identity in up to 2 clients\n'
      'epsilon above 20 gives no meaningful protection',
    ),
  ],
)
def test_the_epsilon_that_a_noise_gives(flags, line):
  code, out, err = plan(*flags, *CLIENT)
  assert (code, err) == (0, '') and line in out, out


@pytest.mark.parametrize(
  'flags, message',
  [
    ((), '--epsilon, --noise'),
    (('--noise=1', '--epsilon=8'), '--epsilon, --noise'),
    (('--noise=1', '--delta=0.01'), 'give at most 0.0021'),
    (('--noise=1', '--batch_identities=49'), 'twice'),
    (('--epsilon=-1',), 'epsilon'),
    (('--noise=1', '--releases=21'), 'give both of them'),
    (('--noise=nan',), 'not finite — --noise'),
    (('--epsilon=nan',), 'not finite — --epsilon'),
    (('--noise=1', '--delta=nan'), 'not finite — --delta'),
    (('--noise=1', '--statistics-noise=inf'), '--statistics_noise'),
    (
      ('--epsilon=1', '--statistics-noise=0.5', '--releases=21'),
      'the statistics alone have epsilon = ',
    ),
  ],
)
def test_errors_are_one_line(flags, message):
  code, _, err = plan(*CLIENT, *flags)
  assert code == 2 and len(err.splitlines()) == 1 and message in err, err
