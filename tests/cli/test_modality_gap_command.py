import functools
import json

import commands
import pytest

# A run of the visible-infrared setting in seconds.
TINY = (
  'dppt.py:smoke,local=base,model.name=convnet,model.features=(8,16),'
  'optim.lr=0.05,data.sources=("plaza:cameras=1,infrared=1",)'
)


@pytest.mark.slow
def test_moments_are_compared_on_a_finished_run(tmp_path):
  launch = functools.partial(commands.launch, timeout=900.0)
  workdir = f'--workdir={tmp_path}'
  code, _, err = launch('main', f'--config=configs/{TINY}', workdir)
  assert code == 0, err
  code, out, err = launch('evaluate', workdir, '--modality_gap')
  assert code == 0, err
  assert 'modality' in out and 'offset' in out
  rows = json.loads((tmp_path / 'modality-gap-2.json').read_text())
  assert [row['moments'] for row in rows] == ['running', 'source', 'modality']
  assert {row['persons'] for row in rows} == {8}
  assert len({row['offset'] for row in rows}) == 3

  change = '--set=evaluation.batch_stats=modality'
  code, _, err = launch('evaluate', workdir, change)
  assert code == 0, err
  (file,) = tmp_path.glob('evaluation-2-*.json')
  found = json.loads(file.read_text())
  assert found['overrides'] == {'evaluation.batch_stats': 'modality'}
  (entry,) = found['entries']
  assert entry['metrics']['mAP'] == pytest.approx(rows[2]['mAP'])
  code, _, err = launch(
    'evaluate', workdir, '--modality_gap', '--set=data.targets=("mall",)'
  )
  assert code == 2 and 'both modalities' in err


def test_a_federation_without_infrared_images_is_refused(tmp_path):
  code, _, err = commands.launch(
    'main',
    '--config=configs/fedpav.py:smoke,evaluation.batch_stats=modality',
    f'--workdir={tmp_path}',
  )
  assert code == 2 and len(err.splitlines()) == 1
  assert 'infrared' in err and 'evaluation.batch_stats' in err
