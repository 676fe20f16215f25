"""The command line of the data sets."""

import functools
import shutil

import commands
import numpy as np
import photo_trees
import pytest

from fedreid_jax.data import decoder
from fedreid_jax.data.benchmark import prepared
from fedreid_jax.data.datasets import registry


@pytest.fixture
def run(tmp_path, monkeypatch):
  """`(*arguments) -> (exit code, stdout, stderr)`."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setenv('COLUMNS', '100')
  return functools.partial(commands.launch, 'data')


def test_prepare_twice(run, minis, tmp_path):
  arguments = (
    'prepare',
    '--dataset=market1501',
    f'--root={minis("market1501")}',
    f'--out={tmp_path / "out"}',
    '--height=32',
    '--width=16',
  )
  first, second = run(*arguments), run(*arguments)
  assert first == second
  assert first[0] == 0
  assert 'Market-1501: 110x32x16x3 uint8 in' in first[1]


def test_doctor(run, mini_copy):
  root = mini_copy('regdb')
  where = ('doctor', '--dataset=regdb:trial=2', f'--root={root}')
  code, out, _ = run(*where)
  assert code == 0
  assert 'RegDB: found / published' in out
  assert '100 / 4,120' in out and 'trial=2' in out
  assert 'warning: train has 5 identities, published are 206' in out
  assert 'no image of the data set' in out and '.heic' not in out
  for name in ('1.HEIC', '2.heic', 'notes'):
    (root / 'Visible/1' / name).touch()
  (root / 'Visible/1/person_v_00000_1.bmp').write_bytes(b'')
  code, out, err = run(*where, '--deep')
  assert code == 3
  assert 'error: unreadable files, 1: Visible/1/person_v_00000_1.bmp' in out
  assert ', 2 .heic, 1 without end\n' in out
  assert err.startswith('error[3]: 2 errors, first: unreadable files')


def test_doctor_of_photographs(run, tmp_path):
  photo_trees.one_data_set(tmp_path / 'mine', people=3)
  code, out, _ = run('doctor', f'--root={tmp_path}/mine')
  assert code == 0
  assert (
    'note: a guess: camera 01 from the last number of 000 人/a_01.jpg' in out
  )
  assert '0 warnings, no errors\nnext: fedreid train fedpav:photos' in out


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((), 'error[2]: no command — command line — one of prepare, doctor'),
    (('cure',), "error[2]: unknown command 'cure'"),
    (('doctor', '--dataset=viper'), 'error[2]: no --root — command line'),
    (('doctor', '--root=x', '--dataset=x'), "error[2]: unknown data set 'x'"),
    (('doctor', '--root=x', '--dataset=viper'), 'error[3]: x does not exist'),
    (('synth', 'viper'), "error[2]: stray argument 'viper'"),
    (('synth', '--identities=5'), 'identities'),
  ],
)
def test_mistakes(run, arguments, message):
  code, _, err = run(*arguments)
  assert code in (2, 3) and message in err and len(err.splitlines()) == 1


def test_a_folder_that_is_no_flag_gets_its_flag(run, tmp_path):
  code, _, err = run('doctor', str(tmp_path))
  assert (code, err) == (
    2,
    f"error[2]: stray argument '{tmp_path}' — command line — give "
    f'--root={tmp_path}\n',
  )


@pytest.mark.parametrize('name', ['msmt17', 'grid'])
def test_an_archive_in_a_folder_of_the_sets_name(run, minis, tmp_path, name):
  inner = tmp_path / 'root' / name / registry.get(name).folders[0]
  shutil.copytree(minis(name), inner)
  where = (f'--dataset={name}', f'--root={tmp_path / "root"}')
  code, out, err = run('doctor', *where)
  assert (code, err) == (0, ''), out
  size = ('--height=16', '--width=8')
  assert run('prepare', *where, f'--out={tmp_path / "out"}', *size)[0] == 0
  images = [
    prepared.open_prepared(root, name, decoder.Decoder(16, 8))
    for root in (tmp_path / 'root', tmp_path / 'out', minis(name))
  ]
  for one in images:
    assert one.names == images[2].names
    np.testing.assert_array_equal(one.images, images[2].images)


def test_list_names_everything(run):
  code, out, _ = run('list')
  assert code == 0
  assert 'msmt17: MSMT17; market' in out and 'val=train|val|drop' in out


@pytest.mark.slow
def test_synth_and_sheet(run, tmp_path):
  size = ('--height=32', '--width=16')
  root = tmp_path / 'mini'
  arguments = ('synth', '--dataset=grid', f'--root={root}', '--identities=6')
  code, out, _ = run(*arguments, *size)
  assert code == 0
  assert out.splitlines() == [
    f'a miniature of QMUL GRID in {root}',
    f'next: fedreid data doctor --dataset=grid --root={root}',
  ]
  assert len(list((root / 'probe').iterdir())) == 5
  code, _, err = run(*arguments, *size)
  assert code == 6 and 'not empty' in err
  code, _, _ = run('sheet', f'--out={tmp_path / "a.png"}', *size)
  assert code == 0 and (tmp_path / 'a.png').stat().st_size > 1000
