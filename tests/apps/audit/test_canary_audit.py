import dataclasses

import numpy as np
import pytest

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.algorithms import dp_fedavg
from fedreid_jax.algorithms.statistics import white_noise
from fedreid_jax.apps.audit.canary import (
  canary_audit,
  canary_rounds,
  canary_steps,
)
from fedreid_jax.config import schema
from fedreid_jax.data.federation import Federation
from fedreid_jax.method.component import Participants
from fedreid_jax.training import build
from fedreid_jax.training.checks import toy_federation


def participants(number=200, fraction=1.0, rounds=1):
  people = tuple(toy_federation.toy_client(f'c{k}', 4) for k in range(number))
  return Participants(people, 0, number, fraction, fraction < 1, rounds=rounds)


def audit(claimed, **options):
  made = dp_fedavg.Options(delta=1e-4, **options)
  canaries = canary_rounds.of(made, participants())
  return canary_audit.audit(canaries, claimed)


def test_the_aggregation_keeps_its_claim():
  found = audit(4.0, noise=0.9)
  assert found.failed == () and found.refuted == ''
  assert found.bound.epsilon <= 4.0
  assert found.positive.right == found.positive.guesses == 100
  assert found.positive.epsilon == found.largest > 2.5
  assert found.negative == 0


def test_a_missing_noise_line_is_caught(monkeypatch):
  monkeypatch.setattr(
    white_noise, 'gaussian', lambda key, models, scale: models
  )
  found = audit(1.0, noise=3.0)
  assert found.failed == () and 'the run claims 1' in found.refuted


def test_a_missing_clip_is_caught(monkeypatch):
  monkeypatch.setattr(dp_fedavg, '_bounded', lambda upload, *_: upload)
  found = audit(1.0, noise=3.0)
  assert found.failed == () and 'the run claims 1' in found.refuted


@pytest.mark.slow
@pytest.mark.parametrize(
  'recipe, component',
  [
    ('dp_fedavg:smoke,components=("fedpav","dp_fedavg","secagg")', 'dp_fedavg'),
    ('dfh_dp:smoke', 'dpsgd'),
  ],
)
def test_the_noise_is_that_of_the_run(recipe, component, monkeypatch):
  """That of an epsilon depends on roundings, and on other messages."""
  config = fr.load_config(recipe, {'secagg.masks': False})

  def of(options, people, *_):
    raise LookupError(people)

  for module in (canary_rounds, canary_steps):
    monkeypatch.setattr(module, 'of', of)
  with pytest.raises(LookupError) as caught:
    canary_audit.of_run(config, build.load.load(config.data))
  (people,) = caught.value.args
  if component == 'dpsgd':
    assert people.released
  else:
    assert people.rounding > 0


def test_the_noise_of_the_scores_is_that_of_the_mechanism():
  """Over T rounds with the rate q an included canary moves by q T C / (q N)."""
  options = dp_fedavg.Options(noise=2.0, clip=0.5)
  people = participants(200, 0.5, 6)
  included = np.arange(200) < 100
  found = 100 * canary_rounds.scores(options, people, included, 0)
  assert found[:100].mean() == pytest.approx(0.5 * 3, abs=0.8)
  assert found[100:].std() == pytest.approx(2.0 * 0.5 * 6**0.5, rel=0.2)
  other = canary_rounds.scores(options, people, included, 1)
  assert abs(np.corrcoef(found[100:], other[100:])[0, 1]) < 0.4


@pytest.mark.parametrize('changed', [{'adaptive': True}, {'n_max': 9}])
def test_options_of_the_component(changed):
  options = dataclasses.replace(
    dp_fedavg.Options(noise=0.0, clip=0.5), **changed
  )
  people = participants()
  included = np.arange(200) % 3 == 0
  found = canary_rounds.scores(options, people, included, 0)
  weight = 200 * (4 / 9 if 'n_max' in changed else 1)
  np.testing.assert_allclose(found, 0.5 * included / weight, rtol=1e-5)


def private_run(*components, **fields):
  """Configuration and federation of a run on toy clients of three persons."""
  config = toy_federation.toy_config()
  config.components = components
  config.local.sampler, config.local.steps = 'poisson_pk', 4
  config.local.identities, config.local.batch = 2, 4
  config.rounds = 2
  schema.complete(config)
  config.update_from_flattened_dict(fields)
  federation = Federation(
    toy_federation.toy_clients(), (), (8, 8, 1), (0.5,), (0.25,), 'toy'
  )
  return config, federation


@pytest.mark.slow
def test_a_run_of_dpsgd_keeps_its_claim():
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  config, federation = private_run('fedpav', 'dpsgd', **{'dpsgd.noise': 3.0})
  found = canary_audit.of_run(config, federation)
  assert found.failed == () and found.refuted == ''
  assert 0 < found.bound.epsilon < found.claimed < found.largest
  assert (found.bound.canaries, found.bound.guesses) == (1002, 874)


def test_a_run_without_a_guarantee_is_refused():
  with pytest.raises(errors.ConfigError, match='has no guarantee'):
    canary_audit.of_run(*private_run('fedpav'))


def test_few_clients_are_refused():
  with pytest.raises(errors.ConfigError, match='49 clients, fewer'):
    canary_rounds.of(dp_fedavg.Options(), participants(49))
