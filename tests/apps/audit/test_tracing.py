import numpy as np
import pytest

from fedreid_jax.apps.audit import detection
from fedreid_jax.apps.audit.trace import tracing


@pytest.mark.parametrize(
  'dimensions, persons, noise, auc',
  [
    (128.0, 48, 0.0, 0.876),
    (128.0, 48, 0.1, 0.829),
    (128.0, 48, 0.5, 0.626),
    (2048.0, 751, 0.0, 0.878),
  ],
)
def test_theory(dimensions, persons, noise, auc):
  found = tracing.theory(dimensions, persons, noise**2)
  assert found.auc == pytest.approx(auc, abs=0.001)
  assert 0.01 < found.tpr < found.auc


def test_simulation_agrees_with_theory():
  expected = tracing.theory(64.0, 24, 1 / 200).auc
  assert tracing.simulate(64, 24, 200, 0) == pytest.approx(expected, abs=0.015)


def test_noise_on_the_mean_hides_persons():
  rng = np.random.default_rng(0)
  members, known, asked = (rng.normal(size=(n, 64)) for n in (24, 300, 300))

  def found(noise):
    mean = members.mean(0) + noise * rng.normal(size=64)
    return detection.auc(
      tracing.scores(members, mean, known), tracing.scores(asked, mean, known)
    )

  assert found(0) > 0.75 > 0.65 > found(2.0)


def test_scores_do_not_depend_on_units_and_dead_dimensions():
  rng = np.random.default_rng(0)
  persons, known = rng.normal(size=(5, 6)), rng.normal(size=(50, 6))
  mean = persons.mean(0)
  plain = tracing.scores(persons, mean, known)
  scale, shift = rng.uniform(0.1, 9, 6), rng.normal(size=6)
  moved = tracing.scores(
    persons * scale + shift, mean * scale + shift, known * scale + shift
  )
  np.testing.assert_allclose(moved, plain, rtol=1e-6)

  def with_dead(x):
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1)

  dead = tracing.scores(*map(with_dead, (persons, mean, known)))
  np.testing.assert_allclose(dead, plain, rtol=1e-6)
  reference = tracing.scores(known, mean, known)
  np.testing.assert_allclose(
    [reference.mean(), reference.std()], [0, 1], atol=1e-9
  )


def test_effective_dimensions():
  rng = np.random.default_rng(0)
  wide = rng.normal(size=(400, 40))
  assert tracing.effective_dimensions(wide) == pytest.approx(40, rel=0.1)
  copies = np.repeat(wide[:, :5], 8, axis=1)
  assert tracing.effective_dimensions(copies) == pytest.approx(5, rel=0.1)
