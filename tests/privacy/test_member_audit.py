import numpy as np
import pytest
import toy

from fedreid_jax.data import load
from fedreid_jax.privacy import (
  detection,
  member_audit,
  member_control,
  shadow_persons,
)


def planted(gap, control=0.95, leak=False):
  """The verdict on scores that are larger by `gap` for members.

  Args:
    gap: of other images; it is three times as large for the same images.
    control: area of the positive control.
    leak: whether the negative control asks for the members.
  """
  rng = np.random.default_rng(0)
  included = np.asarray([rng.permutation(60) < 30 for _ in range(16)])
  others = np.asarray([rng.permutation(60) < 30 for _ in range(16)])
  scores = rng.normal(size=included.shape)
  found = {
    'other images': scores + gap * included,
    'same images': scores + 3 * gap * included,
  }
  positive = detection.Detection(control, (0.9, 1.0), None, None, 9, 9)
  asked = included if leak else others
  return member_audit._judged(found, included, asked, positive, 0)


def test_a_verdict_on_planted_scores():
  found = planted(1.5)
  assert found.failed == () and (found.persons, found.shadows) == (60, 16)
  other, same = (found.found[case] for case in shadow_persons.CASES)
  assert 0.75 < other.auc < 0.86 and same.auc > 0.98
  assert abs(found.found[member_audit.NEGATIVE].auc - 0.5) < 0.06


def test_a_control_that_does_not_succeed_is_a_failure():
  (line,) = planted(1.5, control=0.89).failed
  assert 'AUC of 0.890' in line


def test_a_negative_control_that_succeeds_is_a_failure():
  (line,) = planted(1.5, leak=True).failed
  assert 'other halves are found with an AUC of 0.8' in line


@pytest.mark.slow
def test_models_are_trained_once_and_deleted_at_the_end(tmp_path, monkeypatch):
  c, lines = toy.synthetic_config(8), []
  federation = load.load(c.data)
  folder = tmp_path / 'shadows'

  def stop(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patched:
    patched.setattr(member_control, 'attack', stop)
    with pytest.raises(KeyboardInterrupt):
      member_audit.audit(c, federation, folder, 4, tell=lines.append)
  assert lines == [f'model {k} of 4' for k in (1, 2, 3, 4)]
  trained = sorted(folder.glob('*/results.json'))
  times = [path.stat().st_mtime_ns for path in trained]
  assert len(trained) == 4
  positive = detection.Detection(0.95, (0.9, 1.0), None, None, 9, 9)
  again = []

  def attack(persons, networks, seed):
    again.extend(path.stat().st_mtime_ns for path in trained)
    assert [one.number for one in persons] == [8, 8]
    assert (networks, seed) == (4, 0)
    return positive

  monkeypatch.setattr(member_control, 'attack', attack)
  found = member_audit.audit(c, federation, folder, 4, tell=lines.append)
  assert again == times and not folder.exists()
  assert (found.persons, found.shadows) == (16, 4)
  assert found.positive is positive


@pytest.mark.slow
def test_persons_who_are_learnt_by_heart_are_found():
  c = toy.synthetic_config()
  c.data.height, c.data.width, c.data.identities, c.data.shots = 32, 16, 16, 4
  persons = shadow_persons.of_clients(
    load.load(c.data).clients, c.data.client_split
  )
  found = member_control.attack(persons, 6)
  assert found.auc >= member_audit.SUCCESS
