"""Work directories after complete, killed and modified runs."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import load
from fedreid_jax.core import types
from fedreid_jax.training.files import checkpoint, recorder, run_files

CONFIG = {
  'rounds': 3,
  'optim': {'lr': 0.1, 'schedule': 'constant', 'milestones': []},
}


def save(workdir, step, config=CONFIG):
  kept = checkpoint.Checkpoints(workdir, run_files.digests(config))
  server = types.ServerState({'params/a': np.ones((1, 1))}, np.zeros(1), {})
  kept.save(step, server, types.ClientState({}, {}, ()), {}, None)


@pytest.fixture(scope='module')
def left(tmp_path_factory):
  """The files of a run that was stopped after two rounds."""
  workdir = tmp_path_factory.mktemp('run')
  recorder.write_json(workdir / 'config.json', CONFIG)
  recorder.write_json(workdir / 'run.json', {'data_digest': 'x'})
  record = recorder.Recorder(workdir, 3)
  for round_ in range(3):
    record.event(round_, 'train', {})
  record.results({'rounds': 2})
  save(workdir, 2)
  return workdir


@pytest.fixture
def workdir(left, tmp_path):
  shutil.copytree(left, tmp_path / 'w')
  return tmp_path / 'w'


def everything(folder):
  return {p: p.is_dir() or p.read_bytes() for p in folder.rglob('*')}


def drop(workdir, *names):
  for name in names:
    path = workdir / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_a_run_that_was_left_in_order_is_resumed(workdir):
  run_files.check(workdir, CONFIG)
  saved = run_files.checkpoints_of(workdir)
  assert saved.latest() == 2
  run_files.check(workdir / 'new', CONFIG)


@pytest.mark.parametrize(
  'names, message',
  [
    (['checkpoints'], 'of 2 rounds'),
    (['checkpoints/manifest-2.json'], 'of 2 rounds'),
    (['checkpoints', 'results.json'], 'of 2 rounds'),
    (['checkpoints', 'metrics.jsonl'], 'of 2 rounds'),
    (['config.json'], 'config.json is missing'),
    (['run.json'], 'run.json is missing'),
    (['config.json', 'metrics.jsonl', 'results.json'], 'config.json is'),
    (['run.json', 'metrics.jsonl', 'results.json'], 'run.json is'),
    (['config.json', 'checkpoints'], 'config.json is missing'),
  ],
)
def test_missing_files_are_named_and_nothing_is_deleted(
  workdir, names, message
):
  drop(workdir, *names)
  before = everything(workdir)
  with pytest.raises(errors.IntegrityError, match=message) as info:
    run_files.check(workdir, CONFIG)
  assert info.value.exit_code == 4 and '--restart' in str(info.value)
  assert everything(workdir) == before


@pytest.mark.parametrize(
  'names',
  [
    ['checkpoints/2'],
    ['checkpoints/manifest-2.json', 'metrics.jsonl', 'results.json'],
  ],
)
def test_no_whole_step_is_no_fresh_start(workdir, names):
  drop(workdir, *names)
  run_files.check(workdir, CONFIG)
  before = everything(workdir)
  kept = checkpoint.Checkpoints(workdir, run_files.digests(CONFIG))
  with pytest.raises(errors.IntegrityError, match='no checkpoint verifies'):
    kept.latest()
  assert everything(workdir) == before


def test_a_kill_before_the_first_checkpoint_is_a_fresh_start(tmp_path):
  workdir = tmp_path
  record = recorder.Recorder(workdir, 3)

  def resumes():
    run_files.check(workdir, CONFIG)
    kept = checkpoint.Checkpoints(workdir, run_files.digests(CONFIG))
    assert kept.latest() is None

  for write in (
    lambda: recorder.write_json(workdir / 'config.json', CONFIG),
    lambda: recorder.write_json(workdir / 'run.json', {}),
    lambda: record.event(0, 'eval', {}),
    lambda: record.results({'rounds': 0}),
    lambda: (workdir / 'checkpoints/0.orbax-checkpoint-tmp').mkdir(
      parents=True
    ),
    lambda: (workdir / 'checkpoints/0').mkdir(),
  ):
    write()
    resumes()


def test_fields_that_are_missing_and_fields_that_differ(workdir):
  path = workdir / 'config.json'
  with pytest.raises(errors.ConfigError, match='optim.lr: 0.1 there, 0.5'):
    run_files.check(workdir, CONFIG | {'optim': {'lr': 0.5}})
  recorder.write_json(path, CONFIG | {'more': 1})
  with pytest.raises(errors.ConfigError, match='more: 1 there, None asked'):
    run_files.check(workdir, CONFIG)
  recorder.write_json(path, {'rounds': 3, 'optim': {}})
  with pytest.raises(errors.IntegrityError, match='has no optim.lr'):
    run_files.check(workdir, CONFIG)


@pytest.mark.parametrize(
  'text', [b'null', b'3', b'\xff\xfe{}', b'{"rounds"', b'[' * 100_000]
)
def test_files_that_are_no_objects(workdir, text):
  drop(workdir, 'checkpoints', 'metrics.jsonl')
  for name in ('results.json', 'config.json'):
    (workdir / name).write_bytes(text)
    with pytest.raises(errors.IntegrityError, match=name):
      run_files.check(workdir, CONFIG)
    drop(workdir, name)
    (workdir / 'run.json').unlink(missing_ok=True)


def test_a_renamed_step_is_not_believed(workdir):
  folder = workdir / 'checkpoints'
  save(workdir, 3)
  (folder / '3').rename(folder / '9')
  (folder / 'manifest-3.json').rename(folder / 'manifest-9.json')
  kept = checkpoint.Checkpoints(workdir, run_files.digests(CONFIG))
  with pytest.warns(
    errors.DamagedCheckpointWarning, match='round 2 is used: it is step 3, ren'
  ):
    assert kept.latest() == 2


def test_a_step_of_another_configuration_is_not_believed(workdir, tmp_path):
  (tmp_path / 'other').mkdir()
  other = CONFIG | {'optim': CONFIG['optim'] | {'lr': 0.2}}
  save(tmp_path / 'other', 5, other)
  for name in ('5', 'manifest-5.json'):
    (tmp_path / 'other/checkpoints' / name).rename(
      workdir / 'checkpoints' / name
    )
  saved = run_files.checkpoints_of(workdir)
  assert saved.verify(5) == 'it is of another configuration'
  assert saved.find('latest') == 2
  recorder.write_json(workdir / 'config.json', other)
  saved = run_files.checkpoints_of(workdir)
  assert saved.find('latest') == 5


def fail(workdir, restart=False, check_lock=lambda: None, write=True):
  with run_files.begun(workdir, restart, check_lock):
    if write:
      recorder.write_json(workdir / 'config.json', CONFIG)
      recorder.write_json(workdir / 'splits-a.json', {})
      (workdir / 'run.json.partial').touch()
      (workdir / 'metrics.jsonl').touch()
      (workdir / 'checkpoints/0.orbax-checkpoint-tmp').mkdir(parents=True)
    raise errors.DataError('bad')


def test_a_start_that_fails_leaves_what_was_there_before(tmp_path):
  (tmp_path / 'mine.json').touch()
  with pytest.raises(errors.DataError):
    fail(tmp_path)
  assert [p.name for p in tmp_path.iterdir()] == ['mine.json']


def test_a_resume_that_fails_deletes_nothing(workdir):
  before = everything(workdir)
  with pytest.raises(errors.DataError):
    fail(workdir, write=False)
  assert everything(workdir) == before


def test_files_that_a_killed_process_left_are_deleted(workdir):
  gone = subprocess.Popen(['true'])
  gone.wait()
  left, own, other = (
    workdir / f'results.json.{name}.partial'
    for name in (gone.pid, os.getpid(), 'x')
  )
  for path in (left, own, other):
    path.touch()
  with run_files.begun(workdir, False, lambda: None):
    assert not left.exists() and own.exists() and other.exists()


@pytest.mark.parametrize('optim', [3, [1]])
def test_a_damaged_configuration_is_one_line(workdir, optim):
  recorder.write_json(workdir / 'config.json', CONFIG | {'optim': optim})
  with pytest.raises(errors.IntegrityError, match='is damaged'):
    run_files.check(workdir, CONFIG)
  with pytest.raises(errors.IntegrityError, match='is damaged'):
    run_files.checkpoints_of(workdir)


def test_a_restart_deletes_the_run_and_nothing_else(workdir):
  for name in ('package.json', 'curves.png', 'evaluation-2.json'):
    (workdir / name).touch()
  for name in ('tensorboard', 'wandb', 'mine'):
    (workdir / name).mkdir()
    (workdir / name / 'x').touch()
  (workdir / 'tracking.json').write_text('{}')
  with run_files.begun(workdir, True, lambda: None):
    found = {p.name for p in workdir.iterdir()}
  assert found == {'package.json', 'curves.png', 'mine'}


@pytest.mark.parametrize('restart', [False, True])
def test_folders_that_were_there_before_any_run_stay(tmp_path, restart):
  (tmp_path / 'wandb').mkdir()
  (tmp_path / 'wandb' / 'mine').touch()
  with pytest.raises(ZeroDivisionError):
    with run_files.begun(tmp_path, restart, lambda: None):
      (tmp_path / 'tensorboard').mkdir()
      (tmp_path / 'tensorboard' / 'events').touch()
      raise ZeroDivisionError
  assert [p.name for p in tmp_path.rglob('*')] == ['wandb', 'mine']


def test_a_run_that_saved_is_no_failed_start(tmp_path):
  with pytest.raises(SystemExit):
    with run_files.begun(tmp_path, False, lambda: None):
      recorder.write_json(tmp_path / 'config.json', CONFIG)
      save(tmp_path, 0)
      raise SystemExit(143)
  assert json.loads((tmp_path / 'config.json').read_text()) == CONFIG
  assert checkpoint.Checkpoints(tmp_path).latest() == 0


def test_files_of_another_run_are_not_cleared(tmp_path):
  def lost():
    raise errors.LockedError('lost')

  with pytest.raises(errors.DataError):
    fail(tmp_path, check_lock=lost)
  assert (tmp_path / 'config.json').exists()


def test_the_digest_is_of_what_the_file_holds(tmp_path):
  config = toy.toy_config()
  resolved = load.to_json(config)
  recorder.write_json(tmp_path / 'config.json', resolved)
  read = recorder.read_object(tmp_path / 'config.json')
  assert run_files.digests(read) == run_files.digests(resolved)
  config = toy.replaced(config, {'optim.lr': 2 * config.optim.lr})
  changed = load.to_json(config)
  assert run_files.digests(changed) != run_files.digests(resolved)


@pytest.mark.parametrize(
  'fields, reason',
  [
    ({'schedule': 'cosine'}, 'reaches zero in the last round'),
    ({'schedule': 'step', 'milestones': [0.5]}, 'fractions of the rounds, 0.5'),
  ],
)
def test_a_schedule_over_all_rounds_cannot_go_on(workdir, fields, reason):
  config = CONFIG | {'optim': CONFIG['optim'] | fields}
  recorder.write_json(workdir / 'config.json', config)
  with pytest.raises(errors.ConfigError, match=f'3 .* to 5: .*{reason}'):
    run_files.check(workdir, config | {'rounds': 5})


def test_a_schedule_of_fewer_rounds_goes_on(workdir):
  """With the rate of its last round, as if it had been given at first."""
  step = {'schedule': 'step', 'milestones': [0.5], 'schedule_rounds': 0}
  config = CONFIG | {'optim': CONFIG['optim'] | step}
  recorder.write_json(workdir / 'config.json', config)
  given = config | {'optim': config['optim'] | {'schedule_rounds': 3}}
  with pytest.raises(errors.ConfigError, match=r'add optim.schedule_rounds=3'):
    run_files.check(workdir, config | {'rounds': 5})
  run_files.check(workdir, given | {'rounds': 5})
  assert (
    run_files.digests(given | {'rounds': 5})[0]
    == (run_files.digests(config)[0])
  )
  other = config | {'optim': config['optim'] | {'schedule_rounds': 4}}
  with pytest.raises(errors.ConfigError, match='schedule_rounds: 3 there, 4'):
    run_files.check(workdir, other | {'rounds': 5})


@pytest.mark.parametrize(
  'milestones, said',
  [
    ([0.5], 'and the rate of round 3 stays'),
    # The milestone is in the round after the last one.
    ([0.5, 0.9], r'and the rate becomes 0.0?1 in round 4'),
    ([0.5, 4], r'and the rate becomes 0.0?1 in round 5'),
  ],
)
def test_the_remedy_tells_the_rates_to_come(workdir, milestones, said):
  step = {'schedule': 'step', 'milestones': milestones, 'lr': 1.0, 'gamma': 0.1}
  config = CONFIG | {'optim': CONFIG['optim'] | step}
  recorder.write_json(workdir / 'config.json', config)
  with pytest.raises(errors.ConfigError, match=said):
    run_files.check(workdir, config | {'rounds': 6})


def test_checkpoints_of_a_shorter_run_verify_and_those_of_another_do_not(left):
  longer = run_files.digests(CONFIG | {'rounds': 9})
  assert checkpoint.Checkpoints(left, longer).latest() == 2
  other = CONFIG | {'optim': CONFIG['optim'] | {'lr': 0.2}}
  with pytest.raises(errors.IntegrityError, match='another configuration'):
    checkpoint.Checkpoints(left, run_files.digests(other)).latest()
  cosine = CONFIG | {'optim': CONFIG['optim'] | {'schedule': 'cosine'}}
  longer = run_files.digests(cosine | {'rounds': 9})
  assert not {*longer} & {*run_files.digests(cosine)}


def test_lock_is_exclusive_until_it_is_closed(tmp_path):
  # Two descriptors of one process exclude each other as two processes do.
  with run_files.Lock(tmp_path):
    for file in tmp_path.iterdir():  # deleted files do not release it
      file.unlink()
    with pytest.raises(errors.LockedError, match='another run is using it'):
      run_files.Lock(tmp_path)
  run_files.Lock(tmp_path).close()


@pytest.mark.parametrize('where', ['/proc/none', '/dev/null/x'])
def test_workdir_that_cannot_be_made(where):
  with pytest.raises(errors.ResourceError, match='cannot write'):
    run_files.Lock(Path(where))


def test_workdir_that_cannot_be_written(tmp_path, monkeypatch):
  monkeypatch.setattr(os, 'access', lambda *_: False)
  with pytest.raises(errors.ResourceError, match='cannot write: Permission'):
    run_files.Lock(tmp_path / 'new' / 'w')
  assert not (tmp_path / 'new').exists()


def test_created_folders_are_removed_if_empty(tmp_path):
  mine = tmp_path / 'mine'
  mine.mkdir()
  with run_files.Lock(mine / 'a' / 'b'):
    assert (mine / 'a' / 'b').is_dir()
  assert mine.is_dir() and not (mine / 'a').exists()
  with run_files.Lock(mine):
    pass
  assert mine.is_dir()
  with run_files.Lock(mine / 'a' / 'b'):
    (mine / 'a' / 'results').touch()
  assert os.listdir(mine / 'a') == ['results']


def harm(how, folder):
  if how == 'moved':
    folder.rename(folder.with_name('elsewhere'))
  elif how == 'replaced':
    shutil.copytree(folder, folder.with_name('copy'))
    shutil.rmtree(folder)
    folder.with_name('copy').rename(folder)


@pytest.mark.parametrize('how', ['moved', 'replaced'])
def test_a_lock_on_a_moved_folder_is_lost(tmp_path, how):
  with run_files.Lock(tmp_path / 'w') as held:
    held.check()
    harm(how, tmp_path / 'w')
    with pytest.raises(errors.LockedError, match='moved, deleted or replaced'):
      held.check()
  assert (tmp_path / 'w').is_dir() == (how == 'replaced')  # of another run now


@pytest.fixture
def only_files(monkeypatch):
  """A file system that locks files, and not folders."""
  ordinary = fcntl.flock

  def flock(file, how):
    if os.path.isdir(f'/proc/self/fd/{file}'):
      raise OSError(errno.EBADF, 'not a file')
    ordinary(file, how)

  monkeypatch.setattr(fcntl, 'flock', flock)


def test_a_file_is_locked_if_folders_cannot_be(only_files, tmp_path):
  with run_files.Lock(tmp_path) as held:
    with pytest.raises(errors.LockedError, match='another run'):
      run_files.Lock(tmp_path)
    held.check()
    (tmp_path / '.lock').unlink()
    with pytest.raises(errors.LockedError, match='deleted'):
      held.check()
  with run_files.Lock(tmp_path / 'new'):
    pass
  assert os.listdir(tmp_path) == []
