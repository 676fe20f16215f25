import numpy as np
import pytest
from scipy import stats

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection
from fedreid_jax.apps.audit.member import membership


def test_compactness_by_pairs_of_images():
  rng = np.random.default_rng(0)
  features = rng.normal(size=(13, 5))
  persons = np.asarray([0, 1, 2, 0, 1, 2, 2, 0, 1, 2, 3, 3, 0])
  found = membership.compactness(features, persons)
  unit = features / np.linalg.norm(features, axis=1, keepdims=True)
  cosine = unit @ unit.T
  for person in range(4):
    mine = np.flatnonzero(persons == person)
    within = [cosine[a, b] for a in mine for b in mine if a != b]
    others = [
      np.mean(
        [cosine[a, b] for a in mine for b in np.flatnonzero(persons == k)]
      )
      for k in range(4)
      if k != person
    ]
    assert found[person] == pytest.approx(np.mean(within) - max(others))


def test_log_ratios_by_densities_of_the_other_models():
  rng = np.random.default_rng(1)
  scores = rng.normal(size=(6, 4))
  included = np.asarray(
    [
      *([1, 0, 1, 0], [1, 1, 0, 0], [0, 1, 0, 1]),
      *([0, 0, 1, 1], [1, 0, 0, 1], [0, 1, 1, 0]),
    ],
    bool,
  )
  found = membership.log_ratios(scores, included)
  for run in range(6):
    others = [k for k in range(6) if k != run]
    densities = []
    for side in (True, False):
      groups = [
        [scores[k, i] for k in others if included[k, i] == side]
        for i in range(4)
      ]
      squares = sum(((np.asarray(g) - np.mean(g)) ** 2).sum() for g in groups)
      spread = np.sqrt(squares / sum(len(g) - 1 for g in groups))
      means = [np.mean(g) for g in groups]
      densities.append(stats.norm.logpdf(scores[run], means, spread))
    np.testing.assert_allclose(found[run], densities[0] - densities[1])


def test_a_person_whom_all_other_models_have_is_left_out():
  rng = np.random.default_rng(2)
  scores = rng.normal(size=(6, 9))
  included = np.asarray([rng.permutation(9) < 5 for _ in range(6)])
  included[:, 0], included[:, 1] = True, False
  ratios = membership.log_ratios(scores, included)
  assert np.isnan(ratios[:, :2]).all()
  found = membership.measure(ratios, included)
  real = ~np.isnan(ratios)
  assert found.members == (included & real).sum()
  assert found.non_members == (~included & real).sum()


def planted(gap, models=16, persons=200):
  """Scores of persons who differ, larger by `gap` where they are members."""
  rng = np.random.default_rng(3)
  included = rng.random((models, persons)) < 0.5
  base = rng.normal(scale=5, size=persons)
  return base + gap * included + rng.normal(size=included.shape), included


def test_an_effect_is_found_behind_the_differences_of_persons():
  scores, included = planted(2.0)
  raw = detection.auc(scores[included], scores[~included])
  assert raw < 0.65
  ratios = membership.log_ratios(scores, included)
  found = membership.measure(ratios, included)
  known = stats.norm.cdf(2.0 / np.sqrt(2))
  assert known - 0.05 < found.auc < known  # means of 7 or 8 models are noisy
  assert found.tpr is not None and found.tpr > 0.2
  low, high = found.auc_interval
  assert low < found.auc < high < low + 0.04


def null(seed, models=16, persons=24):
  """Ratios and members without an effect."""
  rng = np.random.default_rng(seed)
  included = np.asarray(
    [rng.permutation(persons) < persons // 2 for _ in range(models)]
  )
  base = rng.normal(scale=5, size=persons)
  scores = base + rng.normal(size=included.shape)
  return membership.log_ratios(scores, included), included


def test_no_effect_is_chance(monkeypatch):
  """The negative control fails as seldom as a 99 % interval may."""
  monkeypatch.setattr(membership, 'DRAWS', 150)
  failures = [not membership.at_chance(*null(seed)) for seed in range(100)]
  assert sum(failures) <= 5
  assert not membership.at_chance(*effect(1.0))


def effect(gap):
  scores, included = planted(gap)
  return membership.log_ratios(scores, included), included


def test_scores_that_are_all_equal_say_nothing():
  included = null(0)[1]
  with pytest.raises(errors.DataError, match='cannot be compared'):
    membership.measure(
      membership.log_ratios(np.ones(included.shape), included), included
    )


def test_the_interval_is_over_persons():
  """Models that repeat what another one says do not make it narrower."""
  scores, included = planted(1.0, models=8, persons=30)
  ratios = membership.log_ratios(scores, included)
  once = membership.measure(ratios, included).auc_interval
  twice = membership.measure(
    np.concatenate([ratios, ratios]), np.concatenate([included, included])
  ).auc_interval
  np.testing.assert_allclose(once, twice, atol=0.02)
