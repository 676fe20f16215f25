import json
import shutil
import tarfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.training.files import checkpoint, orbax_files, sealed

GOLDEN = Path(__file__).parents[1] / 'golden'


def states(value=1.0, num=3):
  server = types.ServerState(
    {
      'params/a/kernel': jnp.full((1, 4, 2), value),
      'batch_stats/a/mean': jnp.full((1, 2), value),
    },
    jnp.zeros(num, jnp.int32),
    {'dfh': jnp.full((num, 4, 2), value)},
  )
  clients = types.ClientState(
    {'params/classifier/kernel': np.full((num, 2, 5), value, np.float32)},
    {'dfh': ()},
    (),
  )
  return server, clients


@pytest.fixture
def saved(tmp_path):
  """Three steps, the second the best."""
  kept = checkpoint.Checkpoints(tmp_path)
  for step, score in ((1, 10.0), (2, 50.0), (3, None), (4, 20.0)):
    kept.save(step, *states(float(step)), {'step': step}, score)
  return kept


def test_steps_without_an_evaluation_do_not_pile_up(tmp_path):
  kept = checkpoint.Checkpoints(tmp_path)
  for step in range(1, 8):
    score = 10.0 if step == 3 else None
    kept.save(step, *states(float(step)), {}, score)
  assert kept.steps() == [7, 6, 3]
  (tmp_path / 'checkpoints' / 'manifest-7.json').write_text('null')
  assert kept.verify(7) == 'manifest-7.json is damaged'


def test_measurements_are_copied_and_changed_ones_end_the_run(tmp_path):
  kept, rows = checkpoint.Checkpoints(tmp_path), tmp_path / 'metrics.jsonl'
  rows.write_bytes(b'{"round": 1}\n')
  files = {rows.name: sealed.described(rows.read_bytes())}
  kept.save(1, *states(1.0), {'files': files}, None)
  assert kept.measured(1) == {rows.name: b'{"round": 1}\n'}
  (tmp_path / 'checkpoints/1/metrics.jsonl').write_bytes(b'{"round": 2}\n')
  assert kept.verify(1).startswith('metrics.jsonl was changed')
  rows.write_bytes(b'{"round": 3}\n')
  with pytest.raises(errors.IntegrityError, match='metrics.jsonl'):
    kept.save(2, *states(1.0), {'files': files}, None)


def restore(kept, step):
  return kept.restore(step, *states(0.0))


def test_two_newest_and_the_best_are_kept(saved, tmp_path):
  assert saved.steps() == [4, 3, 2]
  assert saved.best() == 2
  manifests = sorted(p.name for p in (tmp_path / 'checkpoints').glob('*.json'))
  assert manifests == [f'manifest-{s}.json' for s in (2, 3, 4)]


def test_restore_gives_back_every_leaf(saved):
  server, clients, host = restore(saved, 4)
  want = states(4.0)
  for a, b in zip(
    jax.tree.leaves((server, clients)), jax.tree.leaves(want), strict=True
  ):
    np.testing.assert_array_equal(a, b)
  assert host == {'step': 4}
  clients.personal['params/classifier/kernel'][0] = 0  # writable


def files_of(tmp_path, step):
  folder = tmp_path / 'checkpoints' / str(step)
  return sorted(p for p in folder.rglob('*') if p.is_file())


def test_any_flipped_bit_is_refused(saved, tmp_path):
  rng = np.random.default_rng(0)
  for path in files_of(tmp_path, 4):
    data = bytearray(path.read_bytes())
    if not data:
      continue
    place = int(rng.integers(len(data)))
    data[place] ^= 1 << int(rng.integers(8))
    before = path.read_bytes()
    path.write_bytes(data)
    assert saved.verify(4) is not None
    path.write_bytes(before)
    assert saved.verify(4) is None


@pytest.mark.parametrize('harm', ['truncate', 'delete', 'empty', 'extra'])
def test_damage_walks_back_and_says_so(saved, tmp_path, harm):
  path = max(files_of(tmp_path, 4), key=lambda p: p.stat().st_size)
  if harm == 'truncate':
    path.write_bytes(path.read_bytes()[:-1])
  elif harm == 'delete':
    path.unlink()
  elif harm == 'empty':
    path.write_bytes(b'')
  else:
    path.with_name('stray').write_bytes(b'x')
  with pytest.warns(errors.DamagedCheckpointWarning) as said:
    assert saved.latest() == 3
  assert 'checkpoint 4 passed over, round 3 is used' in str(said[0].message)
  assert path.name in str(said[0].message) or harm == 'extra'
  assert saved.steps() == [3, 2]
  saved.save(4, *states(9.0), {}, None)
  assert saved.latest() == 4


def test_a_damaged_best_step_is_passed_over_and_does_not_end_the_run(
  saved, tmp_path
):
  path = tmp_path / 'checkpoints' / '2' / 'host.json'
  path.write_bytes(b'')
  with pytest.warns(errors.DamagedCheckpointWarning, match='host.json'):
    assert saved.find('best') == 4
  # A run that does not stop keeps it, for the next resumption to name.
  saved.save(5, *states(9.0), {}, 10.0)
  assert saved.steps() == [5, 4, 2]
  with pytest.warns(errors.DamagedCheckpointWarning, match='checkpoint 2'):
    assert saved.latest() == 5
  saved.save(6, *states(9.0), {}, 30.0)
  assert saved.best() == 6 and saved.steps() == [6, 5]


def test_step_without_manifest_does_not_exist(saved, tmp_path):
  (tmp_path / 'checkpoints' / 'manifest-4.json').unlink()
  (tmp_path / 'checkpoints' / '10').mkdir()
  (tmp_path / 'checkpoints' / '11.orbax-checkpoint-tmp').mkdir()
  with pytest.warns(errors.DamagedCheckpointWarning, match='manifest-10.json'):
    assert saved.latest() == 3
  # What a kill has left would stay for ever.
  assert not [*(tmp_path / 'checkpoints').glob('*tmp*')]


def test_all_steps_bad_is_an_error(saved, tmp_path):
  for step in (2, 3, 4):
    files_of(tmp_path, step)[0].write_bytes(b'?')
  with pytest.raises(errors.IntegrityError, match='--restart') as info:
    saved.latest()
  assert info.value.exit_code == 4


def test_only_an_unfinished_first_step_is_a_fresh_start(tmp_path):
  kept = checkpoint.Checkpoints(tmp_path)
  kept.save(0, *states(), {}, None)
  (tmp_path / 'checkpoints' / 'manifest-0.json').unlink()
  assert kept.latest() is None
  assert kept.steps() == []


def test_another_model_is_refused_by_leaf(saved):
  server, clients = states(0.0)
  server.shared['params/a/kernel'] = jnp.zeros((1, 4, 3))
  with pytest.raises(errors.IntegrityError, match='model/params/a/kernel'):
    saved.restore(4, server, clients)


def test_another_type_is_refused(saved):
  server, clients = states(0.0)
  server.shared['params/a/kernel'] = jnp.zeros((1, 4, 2), jnp.int32)
  with pytest.raises(errors.IntegrityError, match='float32.*int32'):
    saved.restore(4, server, clients)


def test_fewer_clients_are_refused(saved):
  with pytest.raises(errors.IntegrityError, match='clients'):
    saved.restore(4, *states(0.0, num=2))


def test_a_step_of_version_0_of_orbax_is_read(tmp_path):
  # Two steps of the states of this file, the first one the best.
  with tarfile.open(GOLDEN / 'checkpoints_v0.tar.xz') as archive:
    archive.extractall(tmp_path, filter='data')
  kept = checkpoint.Checkpoints(tmp_path)
  assert (kept.latest(), kept.best()) == (4, 2)
  server, clients, host = restore(kept, 4)
  for a, b in zip(
    jax.tree.leaves((server, clients)),
    jax.tree.leaves(states(4.0)),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)
  assert host == {'step': 4}
  kept.save(5, *states(5.0), {}, 10.0)
  assert (kept.best(), kept.steps()) == (2, [5, 4, 2])


def test_states_of_server_components_alone(saved):
  kept = saved.restore_states(4)
  assert list(kept) == ['dfh']
  assert kept['dfh'].shape == (3, 4, 2)


def test_manifest_names_every_file(saved, tmp_path):
  manifest = json.loads(
    (tmp_path / 'checkpoints' / 'manifest-4.json').read_text()
  )
  assert len(manifest) == len(files_of(tmp_path, 4))
  assert 'host.json' in manifest


def test_a_save_the_disk_cannot_hold_is_not_begun(saved, monkeypatch):
  needed = sum(x.nbytes for x in jax.tree.leaves(states()))
  usage = shutil.disk_usage('/')
  monkeypatch.setattr(
    shutil, 'disk_usage', lambda _: usage._replace(free=needed - 1)
  )
  with pytest.raises(errors.ResourceError, match=f'{needed - 1} are free'):
    saved.save(5, *states(), {}, None)
  assert saved.steps() == [4, 3, 2]
  monkeypatch.setattr(
    shutil, 'disk_usage', lambda _: usage._replace(free=needed)
  )
  saved.save(5, *states(), {}, None)
  assert saved.steps()[0] == 5


@pytest.mark.parametrize(
  'words, kind',
  [
    ('RESOURCE_EXHAUSTED: Error writing: No space left', errors.ResourceError),
    ('a tree of another kind', ValueError),
  ],
)
def test_a_disk_that_fills_up_meanwhile(saved, monkeypatch, words, kind):
  partial = saved._root / '5.orbax-checkpoint-tmp'

  def save(*_, **__):
    partial.mkdir()
    raise ValueError(words)

  monkeypatch.setattr(orbax_files.ocp, 'save_checkpointables', save)
  with pytest.raises(kind):
    saved.save(5, *states(), {}, None)
  assert partial.exists() == (kind is ValueError)
  assert saved.latest() == 4


def test_steps_that_stay_do_so_after_a_resume_without_it(tmp_path):
  first = checkpoint.Checkpoints(tmp_path, stay=True)
  for step in (1, 2, 3):
    first.save(step, *states(float(step)), {}, None)
  later = checkpoint.Checkpoints(tmp_path)
  for step in (4, 5, 6, 7):
    later.save(step, *states(float(step)), {}, None)
  assert later.steps() == [7, 6, 3, 2, 1]
