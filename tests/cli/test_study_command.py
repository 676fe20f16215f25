import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedreid_jax.config import claims

ROOT = Path(__file__).parents[2]
# A claim's trial in seconds; the weights fit images of any size.
TINY = (
  'rounds=1,data.height=32,data.width=16,data.identities=6,data.shots=2,'
  'data.target_identities=6'
).split(',')


def launch(*flags):
  done = subprocess.run(
    [sys.executable, '-m', 'launchers.study', *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=500,
  )
  return done.returncode, done.stdout, done.stderr


def test_list_prints_every_claim():
  code, out, err = launch('--list')
  assert (code, err) == (0, '')
  assert [line.split()[0] for line in out.splitlines()] == list(claims.CLAIMS)


def test_an_unknown_claim_is_one_line():
  code, _, err = launch('--claims=dfh,nothing')
  assert code == 2 and len(err.splitlines()) == 1
  assert "no claim 'nothing'" in err and 'fedprox' in err


@pytest.mark.slow
def test_a_claim_is_tried_resumed_and_judged(tmp_path):
  flags = ['--claims=fedprox', '--seeds=0', f'--workdir={tmp_path}']
  flags += [f'--set={change}' for change in TINY]
  code, out, err = launch(*flags, '--shard=0/2')
  assert code == 0, err
  assert (
    'no runs yet' in out and len(list(tmp_path.glob('*/results.json'))) == 3
  )
  code, out, err = launch(*flags)
  assert code == 0, err
  assert out.count('[') >= 3  # the runs of the other shard, and an interval
  assert 'FedProx is near FedPav.' in out
  (row,) = json.loads((tmp_path / 'claims.json').read_text())
  assert (row['seeds'], row['targets']) == (1, 9)
  assert row['low'] <= row['mean'] <= row['high']
  assert row['mean'] == pytest.approx(row['arm'] - row['base'], abs=1e-3)
  assert (tmp_path / 'claims.png').stat().st_size > 1000
