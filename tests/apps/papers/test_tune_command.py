"""`fedreid tune` chooses on held-out persons, and resumes."""

import json

import commands
import pytest

TINY = (
  'fedpav:smoke,model.features=(4,8),data.height=32,data.width=16,'
  'data.identities=8,data.shots=2,data.target_identities=6,rounds=1,'
  'evaluation.every=1'
)


@pytest.mark.slow
def test_a_rate_is_chosen_recorded_and_printed(tmp_path):
  flags = ['--grid=optim.lr=0.001,0.1', '--seeds=0,1', f'--workdir={tmp_path}']
  code, out, err = commands.launch_program('tune', TINY, *flags, '--shard=0/2')
  assert code == 0, err
  assert 'runs of other shards have not ended' in out
  assert 'held out of every client: 25% of its persons' in out
  code, out, err = commands.launch_program('tune', TINY, *flags)
  assert code == 0, err
  found = json.loads((tmp_path / 'tuned.json').read_text())
  assert (found['recipe'], found['seeds']) == ('fedpav', [0, 1])
  assert (found['validation'], found['rounds']) == (0.25, 4)
  means = {
    one['point']: sum(one['held_out_mAP']) / 2 for one in found['points']
  }
  assert list(means) == ['optim.lr=0.001', 'optim.lr=0.1']
  assert found['chosen'] == max(means, key=means.get)
  assert f'chosen: {found["chosen"]}' in out
  assert 'next: fedreid train ' in out and '--config.optim.lr=' in out
  # The scores are those of the runs, on other persons of the clients.
  for run in tmp_path.glob('*/results.json'):
    tested = {x['target'] for x in json.loads(run.read_text())['evaluation']}
    assert {x for x in tested if x.startswith('validation:')}
  code, again, err = commands.launch_program('tune', TINY, *flags)
  assert code == 0 and '[1/' not in again, err


@pytest.mark.slow
def test_domains_that_hold_out_nobody_end_a_search_after_a_run(tmp_path):
  spec = f'{TINY},evaluation.validation=0.1'
  flags = '--grid=optim.lr=0.001,0.1', f'--workdir={tmp_path}'
  for _ in range(2):  # the second time nothing is trained
    code, _, err = commands.launch_program('tune', spec, *flags)
    assert code == 2 and 'raise evaluation.validation' in err
    assert len([*tmp_path.glob('*/results.json')]) == 1


@pytest.mark.parametrize(
  'flags, message',
  [
    ((), 'no recipe'),
    (('fedpav:smoke', '--grid=optim.lrs=1'), 'optim.lrs'),
    (('cluster_contrast:smoke',), 'evaluation.validation'),
  ],
)
def test_what_cannot_be_tuned_is_one_line(flags, message):
  code, _, err = commands.launch_program('tune', *flags)
  assert code == 2 and len(err.splitlines()) == 1
  assert message in err
