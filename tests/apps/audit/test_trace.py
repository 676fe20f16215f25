import numpy as np
import pytest
import toy
import toy_run

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection, trace
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import federation
from fedreid_jax.data.federation import Images


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
  found = trace.auc(dimensions, persons, noise**2)
  assert found == pytest.approx(auc, abs=0.001)


def test_simulation_agrees_with_theory():
  expected = trace.auc(64.0, 24, 1 / 200)
  assert trace.simulate(64, 24, 200, 0) == pytest.approx(expected, abs=0.015)


def test_noise_on_the_mean_hides_persons():
  rng = np.random.default_rng(0)
  members, known, asked = (rng.normal(size=(n, 64)) for n in (24, 300, 300))

  def found(noise):
    mean = members.mean(0) + noise * rng.normal(size=64)
    return detection.auc(
      trace.scores(members, mean, known), trace.scores(asked, mean, known)
    )

  assert found(0) > 0.75 > 0.65 > found(2.0)


def test_scores_do_not_depend_on_units_and_dead_dimensions():
  rng = np.random.default_rng(0)
  persons, known = rng.normal(size=(5, 6)), rng.normal(size=(50, 6))
  mean = persons.mean(0)
  plain = trace.scores(persons, mean, known)
  scale, shift = rng.uniform(0.1, 9, 6), rng.normal(size=6)
  moved = trace.scores(
    persons * scale + shift, mean * scale + shift, known * scale + shift
  )
  np.testing.assert_allclose(moved, plain, rtol=1e-6)

  def with_dead(x):
    return np.concatenate([x, np.ones((*x.shape[:-1], 1))], axis=-1)

  dead = trace.scores(*map(with_dead, (persons, mean, known)))
  np.testing.assert_allclose(dead, plain, rtol=1e-6)
  reference = trace.scores(known, mean, known)
  np.testing.assert_allclose(
    [reference.mean(), reference.std()], [0, 1], atol=1e-9
  )


def test_effective_dimensions():
  rng = np.random.default_rng(0)
  wide = rng.normal(size=(400, 40))
  assert trace.effective_dimensions(wide) == pytest.approx(40, rel=0.1)
  copies = np.repeat(wide[:, :5], 8, axis=1)
  assert trace.effective_dimensions(copies) == pytest.approx(5, rel=0.1)


DIMENSIONS = 48
SHOTS = 4  # images of a person
MEMBERS = 24  # persons of a client
STRANGERS = 700
METHOD = ('fedpav', 'dfh')


def album(persons, rng):
  """Images whose pixels are the features: those of the person, and noise."""
  noise = rng.normal(size=(len(persons), SHOTS, DIMENSIONS))
  found = persons[:, None] + 0.2 * noise
  pixels = np.clip(np.round(128 + 20 * found), 0, 255).astype(np.uint8)
  return pixels.reshape(-1, 1, DIMENSIONS, 1)


def planted(
  same=False, sent=True, strangers=STRANGERS, components=('fedpav', 'dfh')
):
  """A run of two clients, whose persons are isotropic points.

  Args:
    same: whether both clients have the same persons.
    sent: whether the server has the means of the clients, else noise.
    strangers: persons of each target.
    components: of the run.
  """
  rng = np.random.default_rng(0)
  clients, targets, rows = [], [], []
  for name in ('ash', 'birch'):
    persons = rng.normal(size=(MEMBERS, DIMENSIONS))
    if same and clients:
      images = clients[0].images()
    else:
      images = album(persons, rng)
    labels = np.repeat(np.arange(MEMBERS), SHOTS).astype(np.int32)
    zeros = np.zeros(len(labels), np.int32)
    clients.append(
      ClientData(name, lambda i=images: i, labels, zeros, zeros, MEMBERS)
    )
    mean = images.reshape(-1, DIMENSIONS).mean(0)
    rows.append(mean if sent else rng.normal(128, 4, DIMENSIONS))
    others = album(rng.normal(size=(strangers, DIMENSIONS)), rng)
    names = np.repeat(np.arange(strangers), SHOTS).astype(np.int32)
    none = np.zeros(len(names), np.int32)
    table = Images(name, lambda i=others: i, names, none, none)
    targets.append(federation.split_target(table, np.arange(len(names)) < 1))
  kept = np.zeros((2, 4, DIMENSIONS), np.float32)
  kept[:, 0] = rows
  run = toy_run.toy_run(components)
  run = run._replace(config=toy.replaced(run.config, {'dfh.space': 'f'}))
  images = run.federation._replace(
    clients=tuple(clients), targets=tuple(targets)
  )
  return run._replace(
    federation=images,
    states=dict.fromkeys(components, kept),
    extractor=lambda **_: (
      lambda variables, images, modalities: images.reshape(
        len(images), -1
      ).astype(np.float32)
    ),
  )


def test_members_are_traced_as_theory_says():
  found = trace.audit(planted())
  assert found.failed == () and found.dimensions == DIMENSIONS
  assert found.effective == pytest.approx(DIMENSIONS, rel=0.1)
  for case in ('sent', 'same images'):
    one = found.found[case]
    assert one.auc == pytest.approx(found.expected, abs=0.06)
    assert one.auc_interval[0] > 0.75
    assert (one.members, one.non_members) == (2 * MEMBERS, STRANGERS)
  assert 0.7 < found.found['other images'].auc < 0.95
  assert abs(found.found[trace.NEGATIVE].auc - 0.5) < 0.1


def test_statistics_without_the_persons_do_not_trace_them():
  found = trace.audit(planted(sent=False))
  assert found.failed == ()
  low, high = found.found['sent'].auc_interval
  assert low < 0.5 < high
  assert found.found['same images'].auc_interval[0] > 0.75


def test_the_negative_control_fails_where_clients_share_persons():
  (message,) = trace.audit(planted(same=True)).failed
  assert 'the mean of another client' in message


def test_the_positive_control_fails_where_theory_is_wrong(monkeypatch):
  monkeypatch.setattr(trace, 'simulate', lambda *_: 0.5)
  (message,) = trace.audit(planted()).failed
  assert 'isotropic features have an AUC of 0.500' in message


@pytest.mark.parametrize(
  'changed, message',
  [
    ({'strangers': 7}, 'fewer than 8 persons of the domain ash'),
    ({'components': ('fedpav',)}, 'no statistics of DFH'),
  ],
)
def test_runs_that_cannot_be_audited(changed, message):
  with pytest.raises(errors.ConfigError, match=message):
    trace.audit(planted(**changed))
