import types

import numpy as np
import pytest
import toy
import toy_run
from scipy import stats

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection, member, shadow
from fedreid_jax.data import load
from fedreid_jax.round.rounds import Rounds


def test_compactness_by_pairs_of_images():
  rng = np.random.default_rng(0)
  features = rng.normal(size=(13, 5))
  persons = np.asarray([0, 1, 2, 0, 1, 2, 2, 0, 1, 2, 3, 3, 0])
  found = shadow.compactness(features, persons)
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
  found = member.log_ratios(scores, included)
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
  ratios = member.log_ratios(scores, included)
  assert np.isnan(ratios[:, :2]).all()
  found = member.measure(ratios, included)
  real = ~np.isnan(ratios)
  assert found.members == (included & real).sum()
  assert found.non_members == (~included & real).sum()


def planted_membership(gap, models=16, persons=200):
  """Scores of persons who differ, larger by `gap` where they are members."""
  rng = np.random.default_rng(3)
  included = rng.random((models, persons)) < 0.5
  base = rng.normal(scale=5, size=persons)
  return base + gap * included + rng.normal(size=included.shape), included


def test_an_effect_is_found_behind_the_differences_of_persons():
  scores, included = planted_membership(2.0)
  raw = detection.auc(scores[included], scores[~included])
  assert raw < 0.65
  ratios = member.log_ratios(scores, included)
  found = member.measure(ratios, included)
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
  return member.log_ratios(scores, included), included


@pytest.mark.slow
def test_no_effect_is_chance(monkeypatch):
  """The negative control fails as seldom as a 99 % interval may."""
  monkeypatch.setattr(member, 'DRAWS', 150)
  failures = [not member.at_chance(*null(seed)) for seed in range(100)]
  assert sum(failures) <= 5
  scores, included = planted_membership(1.0)
  assert not member.at_chance(member.log_ratios(scores, included), included)


def test_scores_that_are_all_equal_say_nothing():
  included = null(0)[1]
  with pytest.raises(errors.DataError, match='cannot be compared'):
    member.measure(
      member.log_ratios(np.ones(included.shape), included), included
    )


def test_the_interval_is_over_persons():
  """Models that repeat what another one says do not make it narrower."""
  scores, included = planted_membership(1.0, models=8, persons=30)
  ratios = member.log_ratios(scores, included)
  once = member.measure(ratios, included).auc_interval
  twice = member.measure(
    np.concatenate([ratios, ratios]), np.concatenate([included, included])
  ).auc_interval
  np.testing.assert_allclose(once, twice, atol=0.02)


POSITIVE = detection.Detection(0.95, (0.9, 1.0), None, None, 9, 9)


def planted(gap, leak=False):
  """The verdict on scores that are larger by `gap` for members.

  Args:
    gap: of other images; it is three times as large for the same images.
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
  asked = included if leak else others
  return member._judged(found, included, asked, POSITIVE, 0)


def test_a_verdict_on_planted_scores():
  found = planted(1.5)
  assert found.failed == () and found.left_out == 0
  assert (found.persons, found.shadows) == (60, 16)
  other, same = (found.found[case] for case in shadow.CASES)
  assert 0.75 < other.auc < 0.86 and same.auc > 0.98
  assert abs(found.found[member.NEGATIVE].auc - 0.5) < 0.06


def test_a_negative_control_that_succeeds_is_a_failure():
  (line,) = planted(1.5, leak=True).failed
  assert 'other halves are found with an AUC of 0.8' in line


def small_run(persons=12):
  """A run of two clients whose pixels are features, and no model."""
  run = toy_run.toy_run(('fedpav',))
  rng = np.random.default_rng(0)
  clients = []
  for name in ('ash', 'birch'):
    labels = np.repeat(np.arange(persons), 4).astype(np.int32)
    images = rng.integers(0, 256, (len(labels), 1, 8, 1), dtype=np.uint8)
    zeros = np.zeros(len(labels), np.int32)
    clients.append(
      toy.toy_client(name, 4)._replace(
        images=lambda images=images: images,
        labels=labels,
        cameras=zeros,
        modalities=zeros,
        num_identities=persons,
      )
    )
  images = run.federation._replace(clients=tuple(clients))
  return run._replace(federation=images)


def test_members_are_the_persons_of_the_training(tmp_path, monkeypatch):
  """The features of a model are noise but for the persons it is trained on."""
  run, trained, seeds = small_run(), {}, []
  monkeypatch.setattr(member, 'attack_memory', lambda *_: POSITIVE)
  known = {
    image.tobytes(): (client.name, label)
    for client in run.federation.clients
    for image, label in zip(client.images(), client.labels, strict=True)
  }

  def train(make, config, folder):
    seeds.append(config.seed)
    federation = make(config, None)
    assert federation.targets == () and config.track == ()
    trained[folder] = {
      known[image.tobytes()]
      for client in federation.clients
      for image in client.images()
    }
    for client in federation.clients:
      for image, label in zip(client.images(), client.labels, strict=True):
        assert known[image.tobytes()] == (client.name, label)

  def loaded(config, folder, federation):
    rng = np.random.default_rng(len(trained))

    def ranked(images, modalities):
      del modalities
      who = [known[image.tobytes()] for image in images]
      axis = {one: rng.normal(size=16) for one in {*who}}
      return np.asarray(
        [
          rng.normal(size=16) + 2 * axis[one] * (one in trained[folder])
          for one in who
        ]
      )

    return types.SimpleNamespace(ranked=ranked)

  def assemble(_, given, root):
    return given

  monkeypatch.setattr(shadow.build, 'assemble', assemble)
  monkeypatch.setattr(shadow.loop, 'run_rounds', train)
  monkeypatch.setattr(shadow.loaded_run, 'load', loaded)
  lines = []
  found = member.audit(run, tmp_path, 8, tell=lines.append)
  assert lines == [f'model {k} of 8' for k in range(1, 9)]
  assert len({*seeds}) == 8
  assert {len(members) for members in trained.values()} == {12}
  assert found.found['other images'].auc > 0.9 and found.failed == ()


def test_a_control_that_does_not_succeed_ends_the_audit(tmp_path, monkeypatch):
  weak = POSITIVE._replace(auc=0.89)
  monkeypatch.setattr(member, 'attack_memory', lambda *_: weak)
  found = member.audit(small_run(), tmp_path, 4)
  (line,) = found.failed
  assert 'AUC of 0.890' in line and found.shadows == 0


@pytest.mark.parametrize(
  'field, value',
  [
    ('start_from', 'elsewhere'),
    ('data.poison', 'shuffle'),
    ('evaluation.batch_stats', 'source'),
  ],
)
def test_runs_whose_models_would_say_nothing(tmp_path, field, value):
  run = small_run()
  run = run._replace(config=toy.replaced(run.config, {field: value}))
  with pytest.raises(errors.ConfigError) as found:
    member.audit(run, tmp_path, 4)
  assert found.value.where == field


def test_several_models_are_refused(tmp_path):
  run = small_run()._replace(name='client:ash')
  with pytest.raises(errors.ConfigError, match='no single model'):
    member.audit(run, tmp_path, 4)


def test_a_random_sampler_keeps_its_rate(tmp_path, monkeypatch):
  run, seen = small_run(), []
  fields = {'sampler': 'poisson_pk', 'identities': 4, 'batch': 16}
  local = toy.replaced(run.config.local, fields)
  run = run._replace(config=toy.replaced(run.config, {'local': local}))

  def train(make, config, folder):
    seen.append((config.local.identities, config.local.batch))
    raise KeyboardInterrupt

  monkeypatch.setattr(member, 'attack_memory', lambda *_: POSITIVE)
  monkeypatch.setattr(shadow.loop, 'run_rounds', train)
  with pytest.raises(KeyboardInterrupt):
    member.audit(run, tmp_path, 4)
  assert seen == [(2, 8)]


@pytest.mark.slow
def test_a_stopped_audit_trains_no_model_twice(tmp_path, monkeypatch):
  run, lines = small_run(), []
  config = toy.synthetic_config(8)
  run = run._replace(config=config, federation=load.load(config.data))
  monkeypatch.setattr(member, 'attack_memory', lambda *_: POSITIVE)
  real, rounds = Rounds.round, []

  def counted(self, *arguments):
    rounds.append(1)
    return real(self, *arguments)

  monkeypatch.setattr(Rounds, 'round', counted)
  first = member.audit(run, tmp_path, 4, tell=lines.append)
  assert len(rounds) == 4
  again = member.audit(run, tmp_path, 4, tell=lines.append)
  assert len(rounds) == 4 and len(lines) == 8
  assert again.found == first.found
  assert (first.persons, first.shadows) == (16, 4)
