"""What the audits find of those who left a run."""

import json

import commands
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.apps.audit import departed, detection, forgotten
from fedreid_jax.apps.audit.forgotten import JUDGED, NEVER, RUN, Found
from fedreid_jax.config import load
from fedreid_jax.training import forgetting, loaded_run, loop


def sides(run, kept, departed=12, others=60, seed=0):
  """Scores of the departed, shifted in the run and in the judged model."""
  rng = np.random.default_rng(seed)
  inside = rng.normal(size=departed)
  outside = rng.normal(size=others)
  moved = {RUN: inside + run, JUDGED: inside + kept, NEVER: inside}
  return moved, dict.fromkeys(moved, outside)


def test_a_model_that_forgot_is_like_one_that_never_knew():
  found = forgotten.judged(sides(3.0, 0.0))
  assert found.failed == () and (found.departed, found.others) == (12, 60)
  assert found.more == 0.0 and found.interval == (0.0, 0.0)
  assert found.found[RUN].auc > 0.95 > found.found[JUDGED].auc
  assert found.found[JUDGED] == found.found[NEVER]


def test_what_a_model_kept_is_the_difference():
  found = forgotten.judged(sides(3.0, 2.0))
  low, high = found.interval
  assert 0.2 < low < found.more < high
  areas = [found.found[name].auc for name in (JUDGED, NEVER)]
  assert found.more == areas[0] - areas[1]
  text = '\n'.join(forgotten.lines('membership', found))
  assert 'membership: 12 departed persons, 60 whom no run had' in text
  assert f'the run          AUC {found.found[RUN].auc:.3f} [' in text
  assert f'{found.more:+.3f} [{low:+.3f}, {high:+.3f}] (judged minus' in text


def test_controls_that_fail_are_named():
  (text,) = forgotten.judged(sides(0.0, 0.0)).failed
  assert 'not found in the run itself' in text and 'too weak' in text
  inside, outside = sides(3.0, 0.0)
  inside[NEVER] = inside[NEVER] + 3
  (text,) = forgotten.judged((inside, outside)).failed
  assert 'found in the run that never had them' in text


def test_one_person_has_a_rank():
  found = forgotten.success(np.array([2.5]), np.arange(10.0))
  assert found.auc == pytest.approx(0.3)
  assert found.chance == pytest.approx(8 / 11)
  assert found.interval == pytest.approx(detection.proportion(3, 10))
  top = forgotten.success(np.array([99.0]), np.arange(39.0))
  assert top == Found(1.0, detection.proportion(39, 39), 1 / 40)
  one = forgotten.judged(sides(9.0, 9.0, departed=1))
  assert one.failed == () and one.interval is None
  assert ', by chance 0.016' in '\n'.join(forgotten.lines('x', one))
  few = forgotten.judged(sides(9.0, 9.0, departed=1, others=8))
  assert 'too weak' in few.failed[0]


CONFIG = toy.replaced(
  toy.synthetic_config(6),
  {
    'name': 'small',
    'components': ('fedpav',),
    'data.sources': ('plaza', 'campus'),
    'data.targets': ('plaza',),
    'data.target_identities': 12,
    'data.allow_overlap': True,
  },
)


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('forgotten') / 'run'
  loop.train(CONFIG, folder)
  return folder


@pytest.mark.slow
def test_who_is_asked_for(workdir):
  config = load.load_saved(workdir)
  left = forgetting.leave(workdir, config, (), ('plaza/2', 'plaza/4'))
  (group,) = departed.groups(left)
  assert (group.domain, group.client, group.departed) == ('plaza', 'plaza', 2)
  assert len(group.images) == len(group.persons) == (2 + 12) * 4
  (client,) = [c for c in left.federation.clients if c.name == 'plaza']
  rows = np.isin(client.labels, [2, 4])
  np.testing.assert_array_equal(group.images[:8], client.images()[rows])
  left = forgetting.leave(workdir, config, ('plaza',))
  (group,) = departed.groups(left)
  assert (group.departed, group.client) == (6, '')
  left = forgetting.leave(workdir, config, ('campus',))
  with pytest.raises(errors.ConfigError, match='fewer than 8 persons of the'):
    departed.groups(left)
  nobody = left._replace(touched=())
  with pytest.raises(errors.ConfigError, match='no client trained on them'):
    departed.groups(nobody)


@pytest.mark.slow
def test_a_test_of_persons_who_were_trained_on_is_not_used(workdir):
  config = load.load_saved(workdir)
  left = forgetting.leave(workdir, config, (), ('plaza/2',))
  (target,) = left.federation.targets
  (client,) = [c for c in left.federation.clients if c.name == 'plaza']

  def with_persons_of_the_client(count):
    own = np.flatnonzero(client.labels < count)
    pixels = target.images.images().copy()
    # Other numbers, as those of a target may be.
    pixels[: len(own)] = client.images()[own]
    shown = target.images._replace(images=lambda: pixels)
    tests = (target._replace(images=shown),)
    return left._replace(federation=left.federation._replace(targets=tests))

  (one,) = departed.groups(with_persons_of_the_client(4))
  assert one.persons.max() + 1 == 1 + (12 - 4)
  with pytest.raises(errors.ConfigError, match='fewer than 8 persons of the'):
    departed.groups(with_persons_of_the_client(5))


@pytest.mark.slow
@pytest.mark.parametrize('split', ['centralised', 'by_identity'])
def test_a_domain_that_is_no_client_is_asked_for(tmp_path, split):
  config = toy.replaced(CONFIG, {'data.client_split': split, 'rounds': 1})
  loop.train(config, tmp_path)
  left = forgetting.leave(tmp_path, load.load_saved(tmp_path), ['plaza'])
  (one,) = departed.groups(left)
  # The parts into which its persons were divided are asked for together.
  assert (one.domain, one.client, one.departed) == ('plaza', '', 6)
  assert np.bincount(one.persons).tolist() == [4] * (6 + 12)
  if split == 'by_identity':
    names = ['plaza.part0', 'campus.part1']
    more = toy.replaced(config, {'data.targets': ('plaza', 'campus')})
    left = forgetting.leave(tmp_path, more, names)
    found = departed.groups(left)
    assert [(one.domain, one.departed) for one in found] == [
      ('plaza', 3),
      ('campus', 3),
    ]
    part = left.federation.clients[2]
    assert part.name == 'plaza.part0'
    np.testing.assert_array_equal(found[0].images[:12], part.images())


@pytest.mark.slow
def test_what_no_attack_can_judge_is_refused_before_training(workdir):
  config = load.load_saved(workdir)
  left = forgetting.leave(workdir, config, ('plaza',))
  asked = departed.groups(left)
  one = loaded_run.load(config, workdir, federation=left.federation)
  forgotten.check(asked, one)
  several = one._replace(name='cluster:0')
  with pytest.raises(errors.ConfigError, match='no single model of the server'):
    forgotten.check(asked, several)
  rule = toy.replaced(config, {'evaluation.batch_stats': 'target'})
  with pytest.raises(errors.ConfigError, match='uses running statistics'):
    forgotten.check(asked, one._replace(config=rule))


@pytest.mark.slow
def test_the_command_judges_and_keeps_the_run(workdir):
  before = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
  code, out, err = commands.launch_program(
    'forget',
    f'--workdir={workdir}',
    '--client=plaza',
    '--rounds=1',
    '--judge',
    '--references=1',
  )
  # After one round nobody is found, so that the positive control fails.
  (line,) = err.splitlines()
  assert code == 4 and 'too weak to judge' in line, (out, err)
  assert 'leaves out plaza' in out and 'tracing is not judged: ' in out
  into = workdir.with_name('run-without-plaza')
  found = json.loads((into / 'audit-forget.json').read_text())
  assert found['without'] == ['plaza'] and not found['exact']
  assert not found['valid'] and not found['same_bits']
  assert {*found['found']['membership']['found']} == {RUN, JUDGED, NEVER}
  config = json.loads((into / 'config.json').read_text())
  assert config['start_from'] == str(workdir) and config['rounds'] == 1
  after = {p: p.read_bytes() for p in workdir.rglob('*') if p.is_file()}
  assert after == before


@pytest.mark.slow
@pytest.mark.parametrize(
  'flags, message',
  [
    ([], 'nobody to forget'),
    (['--client=plazza'], 'did you mean plaza'),
    (['--identity=plaza/77'], "no person '77'"),
    (['--client=plaza', '--into={}'], 'the run itself'),
    (['--client=campus', '--judge'], 'fewer than 8 persons of the domain'),
  ],
)
def test_errors_are_one_line(workdir, flags, message):
  given = [flag.format(workdir) for flag in flags]
  code, _, err = commands.launch_program(
    'forget', f'--workdir={workdir}', *given
  )
  (line,) = err.splitlines()
  assert code == 2 and line.startswith('error[2]: ') and message in line, err
  assert not workdir.with_name('run-without-campus').exists()
