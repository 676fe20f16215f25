import numpy as np
import pytest
import toy_run

from fedreid_jax import errors
from fedreid_jax.apps.audit.trace import trace_audit
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import federation
from fedreid_jax.data.federation import Images

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
  run.config.dfh.space = 'f'
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
  found = trace_audit.audit(planted())
  assert found.failed == () and found.dimensions == DIMENSIONS
  assert found.effective == pytest.approx(DIMENSIONS, rel=0.1)
  for case in ('sent', 'same images'):
    one = found.found[case]
    assert one.auc == pytest.approx(found.expected, abs=0.06)
    assert one.auc_interval[0] > 0.75
    assert (one.members, one.non_members) == (2 * MEMBERS, STRANGERS)
  assert 0.7 < found.found['other images'].auc < 0.95
  assert abs(found.found[trace_audit.NEGATIVE].auc - 0.5) < 0.1


def test_statistics_without_the_persons_do_not_trace_them():
  found = trace_audit.audit(planted(sent=False))
  assert found.failed == ()
  low, high = found.found['sent'].auc_interval
  assert low < 0.5 < high
  assert found.found['same images'].auc_interval[0] > 0.75


def test_the_negative_control_fails_where_clients_share_persons():
  (message,) = trace_audit.audit(planted(same=True)).failed
  assert 'the mean of another client' in message


def test_the_positive_control_fails_where_theory_is_wrong(monkeypatch):
  monkeypatch.setattr(trace_audit.tracing, 'simulate', lambda *_: 0.5)
  (message,) = trace_audit.audit(planted()).failed
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
    trace_audit.audit(planted(**changed))
