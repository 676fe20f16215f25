import json

import commands
import pytest

from fedreid_jax.apps.papers.tables.index import CLAIMS

# A claim's trial in seconds.
TINY = (
  *('rounds=1', 'model.pretrained=', 'model.features=(4,8)'),
  *('data.height=32', 'data.width=16', 'data.identities=6', 'data.shots=2'),
  'data.target_identities=6',
)


@pytest.mark.slow
def test_list_prints_every_claim():
  code, out, err = commands.launch('study', '--list')
  assert (code, err) == (0, '')
  *lines, last = out.splitlines()
  # Long lines go on below the text of a claim.
  names = [line.split()[0] for line in lines if not line.startswith(' ')]
  assert names == list(CLAIMS)
  assert last.startswith(f'{len(CLAIMS)} claims, ')


def test_list_counts_distinct_runs():
  """Both claims have the runs of DFH and FedPav: three methods, three routes.

  Two seeds of each.
  """
  flags = ['--claims=dfh,dfh_novel,dfh_clients', '--seeds=0,1']
  code, out, err = commands.launch('study', '--list', *flags, '--rates=')
  assert (code, err) == (0, '')
  assert out.splitlines()[-1] == '3 claims, 18 runs with these seeds'
  # Three methods, three routes, five rates.
  code, out, err = commands.launch('study', '--list', *flags)
  assert (code, err) == (0, '')
  assert out.splitlines()[-1] == (
    '3 claims, 18 runs with these seeds, and up to 45 runs to choose their '
    'rates'
  )
  # Two methods, three routes, five rates.
  flags = ['--claims=rendered_dfh', '--seeds=0,1']
  code, out, err = commands.launch('study', '--list', *flags)
  assert (code, err) == (0, '')
  assert out.splitlines()[-1] == (
    '1 claim, 12 runs with these seeds, and up to 30 runs to choose their rates'
  )


@pytest.mark.slow
def test_the_flag_alone_stands_for_all_claims():
  """As the README writes it, with another flag behind it."""
  code, out, err = commands.launch('study', '--list', '--claims', '--first')
  assert (code, err) == (0, '')
  assert out.splitlines()[-1].startswith('6 claims, ')


@pytest.mark.slow
def test_an_unknown_claim_is_one_line():
  code, _, err = commands.launch('study', '--claims=dfh,nothing')
  assert code == 2 and len(err.splitlines()) == 1
  assert "no claim 'nothing'" in err and 'fedprox' in err


@pytest.mark.slow
def test_a_claim_is_tried_resumed_and_judged(tmp_path):
  flags = ['--claims=dfh_alpha_121', '--seeds=0', f'--workdir={tmp_path}']
  flags += ['--rates=']
  flags += [f'--set={change}' for change in TINY]
  code, out, err = commands.launch('study', *flags, '--shard=0/2')
  assert code == 0, err
  assert (
    'no runs yet' in out and len(list(tmp_path.glob('*/results.json'))) == 1
  )
  code, out, err = commands.launch('study', *flags)
  assert code == 0, err
  assert '[1/1]' in out  # the run of the other shard
  assert 'Weights 1:2:1 are near equal ones.' in out
  (row,) = json.loads((tmp_path / 'claims.json').read_text())
  assert (row['seeds'], row['targets']) == (1, 3)
  assert row['low'] <= row['mean'] <= row['high']
  assert row['mean'] == pytest.approx(row['arm'] - row['base'], abs=1e-3)
  # Another seed is not trained, and has no effect.
  flags[1] = '--seeds=0,1'
  code, again, err = commands.launch('study', *flags, '--judge')
  assert code == 0, err
  assert json.loads((tmp_path / 'claims.json').read_text()) == [row]
  assert len(list(tmp_path.glob('*/results.json'))) == 2
  assert (tmp_path / 'claims.png').stat().st_size > 1000


def test_a_rate_for_all_methods_is_no_change_of_a_search():
  flags = ['--claims=rendered_dfh', '--set=optim.lr=0.1']
  code, _, err = commands.launch('study', *flags, '--list')
  assert code == 2 and len(err.splitlines()) == 1
  assert '--rates' in err
  code, out, err = commands.launch('study', *flags, '--list', '--rates=')
  assert code == 0, err
  assert out.splitlines()[-1] == '1 claim, 30 runs with these seeds'
