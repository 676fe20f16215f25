import numpy as np
import pytest
import toy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.algorithms import dp_fedavg
from fedreid_jax.algorithms.statistics import privacy
from fedreid_jax.apps.audit import canary, canary_runs
from fedreid_jax.config import validation
from fedreid_jax.data.federation import Federation
from fedreid_jax.method.component import Participants
from fedreid_jax.training import build, contract


@pytest.mark.parametrize(
  'canaries, guesses, right, delta, epsilon',
  [
    (1000, 1000, 1000, 0.0, 5.809),
    (1000, 100, 100, 1e-5, 3.465),
    (1000, 100, 90, 1e-5, 1.626),
    (200, 40, 36, 1e-3, 1.048),
  ],
)
def test_golden_bounds(canaries, guesses, right, delta, epsilon):
  found = canary.lower_bound(delta, canaries, guesses, right)
  assert found == pytest.approx(epsilon, abs=1e-3)


def test_the_bound_grows_with_right_guesses_and_falls_with_delta():
  bounds = [canary.lower_bound(1e-4, 400, 60, v) for v in (30, 45, 60)]
  assert bounds == sorted(bounds) and bounds[0] == 0 < bounds[1] < bounds[2]
  assert canary.lower_bound(1e-3, 400, 60, 60) < bounds[2]
  for epsilon in (0.5, 2.0):
    p = canary.p_value(epsilon, 0.0, 400, 60, 60)
    assert p == pytest.approx((1 / (1 + np.exp(-epsilon))) ** 60)


def gaussian(noise, seed, canaries=1000):
  """Scores of canaries in one sum with Gaussian noise."""
  rng = np.random.default_rng(seed)
  included = rng.random(canaries) < 0.5
  return included + noise * rng.standard_normal(canaries), included


def bounds_of(noise, runs=20):
  return [
    canary.guess(*gaussian(noise, k), 100, 1e-5).epsilon for k in range(runs)
  ]


@pytest.mark.parametrize(
  'epsilon, noise, usual', [(1.0, 3.730632, 0.2), (4.0, 1.081162, 1.6)]
)
def test_the_gaussian_mechanism_keeps_its_claim(epsilon, noise, usual):
  found = bounds_of(noise)
  assert np.mean(found) == pytest.approx(usual, abs=0.25)
  assert max(found) <= epsilon


def test_noise_that_is_too_small_is_caught():
  """An eighth of the noise under a claim of epsilon 1."""
  assert min(bounds_of(3.730632 / 8)) > 1.5


def test_the_noise_of_the_claims():
  dp = pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  for epsilon, noise in ((1.0, 3.730632), (4.0, 1.081162)):
    assert dp.get_sigma_gaussian(epsilon, 1e-5) == pytest.approx(noise, 1e-4)


def test_without_noise_every_guess_is_right_and_permuted_ones_are_chance():
  scores, included = gaussian(0.0, 0)
  found = canary.guess(scores, included, 100, 1e-5)
  assert (found.right, found.guesses, found.canaries) == (100, 100, 1000)
  assert found.epsilon == pytest.approx(3.465, abs=1e-3)
  assert canary.of_permuted(scores, included, 100, 1e-5, 0) == 0


def participants(number=200, fraction=1.0, rounds=1):
  people = tuple(contract.toy_client(f'c{k}', 4) for k in range(number))
  return Participants(people, 0, number, fraction, fraction < 1, rounds=rounds)


def attacked(people, **options):
  """The mechanism that `people` are promised."""
  made = dp_fedavg.make(dp_fedavg.Options(delta=1e-4, **options)).bind(people)
  return canary_runs.of_claim(made.name, made.claim(people))


def audit(claimed, **options):
  people = participants()
  canaries = canary_runs.of_rounds(attacked(people, **options), people)
  return canary.audit(canaries, claimed)


def test_the_aggregation_keeps_its_claim():
  found = audit(4.0, noise=0.9)
  assert found.failed == () and found.refuted == ''
  assert found.bound.epsilon <= 4.0
  assert found.positive.right == found.positive.guesses == 100
  assert found.positive.epsilon == found.largest > 2.5
  assert found.negative == 0


def test_a_missing_noise_line_is_caught(monkeypatch):
  monkeypatch.setattr(privacy, 'gaussian', lambda key, models, scale: models)
  found = audit(1.0, noise=3.0)
  assert found.failed == () and 'the run claims 1' in found.refuted


def test_a_missing_clip_is_caught(monkeypatch):
  monkeypatch.setattr(dp_fedavg, '_bounded', lambda upload, *_: upload)
  found = audit(1.0, noise=3.0)
  assert found.failed == () and 'the run claims 1' in found.refuted


@pytest.mark.slow
def test_the_noise_is_that_of_the_run(monkeypatch):
  """That of an epsilon depends on other messages."""
  config = validation.validate(fr.load_config('dfh_dp:smoke'))

  def of(attacked, people, *_):
    raise LookupError(people)

  monkeypatch.setattr(canary_runs, 'of_steps', of)
  with pytest.raises(LookupError) as caught:
    canary_runs.of_run(config, build.load.load(config.data))
  assert caught.value.args[0].released


def test_noise_on_sums_of_integers_is_refused():
  """The noise of the sums is added beside the component."""
  people = participants()._replace(rounding=0.01)
  with pytest.raises(errors.ConfigError, match="no canaries.*'dp_fedavg'"):
    attacked(people)


def test_the_noise_of_the_scores_is_that_of_the_mechanism():
  """Over T rounds with the rate q an included canary moves by q T C / (q N)."""
  people = participants(200, 0.5, 6)
  own = attacked(people, noise=2.0, clip=0.5)
  included = np.arange(200) < 100
  found = 100 * canary_runs.scores_of_rounds(own, people, True, included, 0)
  assert found[:100].mean() == pytest.approx(0.5 * 3, abs=0.8)
  assert found[100:].std() == pytest.approx(2.0 * 0.5 * 6**0.5, rel=0.2)
  other = canary_runs.scores_of_rounds(own, people, True, included, 1)
  assert abs(np.corrcoef(found[100:], other[100:])[0, 1]) < 0.4


@pytest.mark.parametrize('changed', [{'adaptive': True}, {'n_max': 9}])
def test_options_of_the_component(changed):
  people = participants()
  own = attacked(people, clip=0.5, **changed)
  included = np.arange(200) % 3 == 0
  found = canary_runs.scores_of_rounds(own, people, False, included, 0)
  weight = 200 * (4 / 9 if 'n_max' in changed else 1)
  np.testing.assert_allclose(found, 0.5 * included / weight, rtol=1e-5)


def private_run(*components, **fields):
  """Configuration and federation of a run on toy clients of three persons."""
  config = contract.toy_config()
  config = toy.replaced(
    config,
    {
      'components': components,
      'local.sampler': 'poisson_pk',
      'local.steps': 4,
      'local.identities': 2,
      'local.batch': 4,
      'rounds': 2,
    },
  )
  config = toy.replaced(config, fields)
  federation = Federation(
    contract.toy_clients(), (), (8, 8, 1), (0.5,), (0.25,), 'toy'
  )
  return config, federation


@pytest.mark.slow
def test_a_run_of_dpsgd_keeps_its_claim():
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  config, federation = private_run('fedpav', 'dpsgd', **{'dpsgd.noise': 3.0})
  found = canary_runs.of_run(config, federation)
  assert found.failed == () and found.refuted == ''
  assert 0 < found.bound.epsilon < found.claimed < found.largest
  assert (found.bound.canaries, found.bound.guesses) == (1002, 874)


def test_a_run_without_a_guarantee_is_refused():
  with pytest.raises(errors.ConfigError, match='has no guarantee'):
    canary_runs.of_run(*private_run('fedpav'))


def test_few_clients_are_refused():
  with pytest.raises(errors.ConfigError, match='49 clients, fewer'):
    canary_runs.of_rounds(attacked(participants()), participants(49))
