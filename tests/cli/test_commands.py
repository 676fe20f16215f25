"""The command line as a user meets it."""

import json
import resource
import shutil
import signal
import socket
import time
from pathlib import Path

import commands
import numpy as np
import pytest
from PIL import Image

TINY = 'smoke,model.features=(4,8),data.identities=4,data.target_identities=4'


def launch(*flags, door='main', **variables):
  return commands.start(f'launchers.{door}', *flags, **variables)


@pytest.fixture(scope='module')
def tree(tmp_path_factory) -> Path:
  """Two source domains and a target, 4 identities, 3 cameras, as PNG."""
  root = tmp_path_factory.mktemp('tree')
  rng = np.random.default_rng(0)
  for domain in ('east', 'north', 'west'):
    for person in range(4):
      folder = root / domain / f'p{person}'
      folder.mkdir(parents=True)
      base = rng.integers(0, 256, (8, 8))
      for camera in range(3):
        noise = rng.integers(-20, 20, (8, 8))
        pixels = np.clip(base + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f'x_{camera:02}.png')
  return root


def folder_flags(tree, workdir, recipe='dfh', **more):
  pairs = {
    'data.root': tree,
    'data.targets': '("west",)',
    'data.query': 'camera=00',
    'data.height': 8,
    'data.width': 8,
    'model.features': '(4,8)',
    'local.batch': 4,
    'local.identities': 2,
    'local.data_pass_batch': 4,
    'evaluation.every': 2,
    'evaluation.batch': 8,
    'checkpoint_every': 1,
    'rounds': 4,
  } | more
  values = ','.join(f'{k}={v}' for k, v in pairs.items())
  return (
    f'--config=configs/{recipe}.py:omniglot,{values}',
    f'--workdir={workdir}',
  )


def metrics_of(workdir):
  results = json.loads((workdir / 'results.json').read_text())
  return [(e['round'], e['metrics']) for e in results['evaluation']]


@pytest.mark.slow
def test_synthetic_recipe_end_to_end(tmp_path):
  flags = f'--config=configs/dfh.py:{TINY}', f'--workdir={tmp_path}'
  code, out, err = commands.launch('main', *flags)
  assert code == 0, err
  assert 'unseen targets' in out and 'rank10' in out
  assert 'rendering the images' in out and 'compiling a round' in out
  assert out.splitlines()[-2:] == [
    f'work directory: {tmp_path}',
    f'next: fedreid evaluate --workdir={tmp_path} --checkpoint=best',
  ]
  assert [r for r, _ in metrics_of(tmp_path)] == [0, 2]


@pytest.mark.slow
def test_folder_recipe_then_evaluate_its_checkpoints(tree, tmp_path):
  def evaluate(*flags):
    return commands.launch('evaluate', f'--workdir={tmp_path}', *flags)

  flags = folder_flags(tree, tmp_path, 'fedpav', rounds=2)
  code, _, err = commands.launch('main', *flags)
  assert code == 0, err
  trained = dict(metrics_of(tmp_path))
  code, _, err = evaluate('--checkpoint=2')
  assert code == 0, err
  (file,) = tmp_path.glob('evaluation-2-*.json')
  own = json.loads(file.read_text())
  assert own['checkpoint'] == '2'
  assert own['entries'][0]['metrics'] == trained[2]
  code, _, err = evaluate(
    '--checkpoint=best',
    *('--set=data.targets=("east",)', '--set=data.allow_overlap=True'),
  )
  assert code == 0, err
  code, _, err = evaluate('--checkpoint=77')
  assert code == 4 and err.startswith('error[4]: no checkpoint 77')
  (tmp_path / 'checkpoints' / 'manifest-2.json').write_bytes(b'')
  code, _, err = evaluate()
  assert code == 0, err
  assert err.startswith('warning: checkpoint 2 passed over, round ')
  assert 'manifest-2.json' in err


@pytest.mark.slow
def test_kill_at_any_moment_then_the_same_numbers(tree, tmp_path):
  kills = 2
  fields = {'rounds': 4 + kills, 'checkpoint_every': 2, 'track': '("csv",)'}
  whole = folder_flags(tree, tmp_path / 'whole', **fields)
  assert commands.launch('main', *whole)[0] == 0
  cut = folder_flags(tree, tmp_path / 'cut', **fields)
  rng = np.random.default_rng(0)
  killed = 0
  for _ in range(kills):
    process = launch(*cut)
    lines = tmp_path / 'cut' / 'metrics.jsonl'
    before = lines.read_text().count('\n') if lines.exists() else 0
    while process.poll() is None:
      if lines.exists() and lines.read_text().count('\n') > before:
        time.sleep(rng.uniform(0, 0.15))
        process.kill()
        break
      time.sleep(0.01)
    killed += commands.finish(process)[0] == -signal.SIGKILL
  assert killed
  code, _, err = commands.launch('main', *cut)
  assert code == 0, err
  assert metrics_of(tmp_path / 'cut') == metrics_of(tmp_path / 'whole')
  assert numbers_of(tmp_path / 'cut') == numbers_of(tmp_path / 'whole')


def numbers_of(workdir):
  """Returns the lines of metrics.csv but for those that depend on time."""
  times = ('seconds', 'images_per_second')
  lines = (workdir / 'metrics.csv').read_text().splitlines()
  return [
    x for x in lines if x.split(',')[1].removeprefix('train/') not in times
  ]


def launch_two(flags, *others):
  """Starts both processes of a run, the second with more flags."""
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    port = probe.getsockname()[1]
  return [
    launch(*flags, *more, f'--distributed=127.0.0.1:{port},2,{number}')
    for number, more in enumerate(((), others))
  ]


@pytest.mark.slow
def test_two_processes_are_one_run(tree, tmp_path):
  flags = folder_flags(tree, tmp_path / 'one', rounds=2)
  assert commands.finish(launch(*flags, JAX_NUM_CPU_DEVICES='2'))[0] == 0
  both = launch_two(folder_flags(tree, tmp_path / 'two', rounds=2))
  ends = [commands.finish(process) for process in both]
  assert [code for code, _, _ in ends] == [0, 0], ends
  assert metrics_of(tmp_path / 'two') == metrics_of(tmp_path / 'one')
  assert 'round' not in ends[1][1]


@pytest.mark.slow
def test_two_processes_that_differ_are_refused(tree, tmp_path):
  both = launch_two(folder_flags(tree, tmp_path / 'w'), '--config.seed=3')
  for code, _, err in map(commands.finish, both):
    assert code == 2, err
    assert len(err.splitlines()) == 1
    assert 'seed is 0 in process 0, 3 in 1' in err
  assert not (tmp_path / 'w').exists()


# The margin is for a machine with other work.
HEARTBEAT_S, MARGIN_S = 10, 30


@pytest.mark.slow
@pytest.mark.parametrize(
  'victim, number, more_s', [(0, signal.SIGKILL, 30), (1, signal.SIGSTOP, 0)]
)
def test_the_loss_of_a_process_ends_the_other_in_time(
  tree, tmp_path, victim, number, more_s
):
  """The limits are those of the flags; a process that hangs fails."""
  endless = folder_flags(tree, tmp_path, 'fedpav', **ENDLESS)
  both = launch_two((*endless, f'--heartbeat_s={HEARTBEAT_S}'))
  wait_for_rounds(tmp_path, both)
  both[victim].send_signal(number)
  try:
    code, _, err = commands.finish(
      both[1 - victim], HEARTBEAT_S + more_s + MARGIN_S
    )
  finally:
    for process in both:
      process.kill()
  assert code == 6, err
  line = err.splitlines()[-1]
  assert line.startswith('error[6]: another process of this run was lost')
  assert 'Traceback' not in err and 'coordination' not in err
  commands.finish(both[victim])


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_a_save(tree, tmp_path):
  both = launch_two(folder_flags(tree, tmp_path, 'fedpav', **ENDLESS))
  wait_for_rounds(tmp_path, both)
  both[1].send_signal(signal.SIGTERM)
  ends = [commands.finish(process) for process in both]
  assert [code for code, _, _ in ends] == [143, 143], ends
  saved = ends[0][1].rpartition('saved after round ')[2].partition(',')[0]
  assert (tmp_path / 'checkpoints' / saved).is_dir()


ENDLESS = dict.fromkeys(
  ('rounds', 'checkpoint_every', 'evaluation.every'), 10**6
)


def wait_for_rounds(workdir, processes):
  lines = workdir / 'metrics.jsonl'
  while not (lines.exists() and '"train"' in lines.read_text()):
    assert all(process.poll() is None for process in processes)
    time.sleep(0.05)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_imports_ends_it_at_once(number, tmp_path):
  process = launch(f'--config=configs/dfh.py:{TINY}', f'--workdir={tmp_path}')
  maps = Path(f'/proc/{process.pid}/maps')
  while 'jaxlib' not in maps.read_text():
    time.sleep(0.01)
  process.send_signal(number)
  code, out, err = commands.finish(process)
  assert (code, out) == (128 + number, '')
  assert err == f'stopped by {number.name}\n'


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error():
  process = launch('list', door='data')
  assert process.stdout
  process.stdout.close()
  assert (process.wait(240), process.stderr and process.stderr.read()) == (
    0,
    '',
  )
  process.stderr.close()


@pytest.mark.slow
def test_a_disk_that_takes_no_more_is_one_line(tree, tmp_path):
  # Python would cut the compiled modules that it writes, too, without an error.
  whole = {'PYTHONDONTWRITEBYTECODE': '1'}
  process = launch(*folder_flags(tree, tmp_path / 'w'), **whole)
  resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
  code, _, err = commands.finish(process)
  assert code == 6 and len(err.splitlines()) == 1, err
  assert 'File too large' in err and 'config.json' in err


@pytest.mark.parametrize(
  'flags, code, message',
  [
    (('--config.rounds=0',), 2, 'rounds'),
    (('--config=configs/none.py',), 2, 'one of agw'),
    (('--config=configs/dfh.py:papr',), 2, 'unknown preset'),
    (('--config=configs/dfh.py:smoke', 'config.lr=5'), 2, 'stray argument'),
    (('--config=configs/dfh.py', '--config.rounds=x'), 2, 'rounds'),
    (('--config=configs/dfh.py', '--config.optim.lr=nan'), 2, 'not finite'),
    (('--roundz=3',), 2, '--config.FIELD; did you mean rounds?'),
    (('--workdr=x',), 2, 'did you mean --workdir?'),
    (
      ('--config', 'configs/dfh.py', '--config.seed', '1', '-config.seed', '2'),
      2,
      "'1' and '2'",
    ),
    (
      ('--config=fedreid_jax/config/validation.py',),
      2,
      "no attribute 'get_config'",
    ),
    (('--config=configs/dfh.py:photos',), 3, 'no folder given'),
    (
      ('--config=configs/dfh.py:smoke', '--distributed=nowhere'),
      2,
      '--distributed',
    ),
    pytest.param(
      ('--config=configs/dfh.py:smoke,execution.devices=64',),
      2,
      '64 devices',
      marks=pytest.mark.slow,
    ),
    (
      ('--config=configs/dfh.py:omniglot,data.root=/nowhere',),
      3,
      'does not exist',
    ),
    (('--config=configs/dfh.py:smoke', '--workdir=/dev/null/x'), 6, 'write'),
    pytest.param(
      (f'--config=configs/dfh.py:{TINY},local.steps=2000000000',),
      6,
      'local.steps',
      marks=pytest.mark.slow,
    ),
  ],
  ids=lambda v: '' if isinstance(v, int) else str(v)[:40],
)
def test_one_line_and_a_code(flags, code, message, tmp_path):
  if '--workdir=/dev/null/x' not in flags:
    flags = (*flags, f'--workdir={tmp_path / "w"}')
  status, _, err = commands.launch('main', *flags)
  lines = err.strip().splitlines()
  assert status == code, err
  assert len(lines) == 1 and lines[0].startswith(f'error[{code}]: '), err
  assert message in lines[0]
  assert not (tmp_path / 'w' / 'results.json').exists()


def test_locked_workdir(tree, tmp_path):
  from fedreid_jax.training.files import run_files

  held = run_files.Lock(tmp_path)
  code, _, err = commands.launch('main', *folder_flags(tree, tmp_path))
  assert code == 7 and err.startswith('error[7]: another run')
  held.close()


def test_truncated_image_is_named(tree, tmp_path):
  shutil.copytree(tree, tmp_path / 'tree')
  bad = tmp_path / 'tree' / 'east' / 'p1' / 'x_01.png'
  bad.write_bytes(bad.read_bytes()[:40])
  code, _, err = commands.launch(
    'main', *folder_flags(tmp_path / 'tree', tmp_path / 'w')
  )
  assert code == 3 and 'p1/x_01.png' in err and len(err.splitlines()) == 1
