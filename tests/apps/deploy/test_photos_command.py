"""`fedreid train RECIPE:photos --config.data.root=DIR` as a user types it."""

import json

import commands
import photo_trees
import pytest

# Everything that makes a run small, and nothing that says what the folder is.
SMALL = (
  '--config.rounds=1',
  '--config.local.batch=8',
  '--config.local.identities=4',
  '--config.local.data_pass_batch=8',
  '--config.evaluation.batch=8',
)
TINY = (
  *SMALL,
  '--config.data.height=24',
  '--config.data.width=12',
  '--config.model.name=convnet',
  '--config.model.pretrained=""',
  '--config.model.features=(4,8)',
)


def train(root, workdir, *flags, recipe='dfh:photos', size=TINY):
  name, _, preset = recipe.partition(':')
  return commands.launch(
    'main',
    f'--config=configs/{name}.py:{preset}',
    f'--config.data.root={root}',
    f'--workdir={workdir}',
    *size,
    *flags,
    timeout=900,  # as for a machine that others use
  )


def queries_of(workdir):
  results = json.loads((workdir / 'results.json').read_text())
  return {entry['query'] for entry in results['evaluation']}


@pytest.mark.slow
def test_a_tree_without_cameras_trains_and_is_evaluated(tmp_path):
  root, workdir = tmp_path / 'Fotos é', tmp_path / 'w'
  photo_trees.domains(root, cameras=False)
  code, out, err = train(root, workdir, recipe='fedpav:photos')
  assert code == 0, err
  said = '4 domains, 16 identities, 64 images, no cameras; test on 駅'
  note = f'note: {root} (domain/identity/image): {said}'
  assert ' '.join(note.split()) in ' '.join(out.split())
  rule = 'one random image per identity (no cameras)'
  assert f'\nquery: {rule}\n' in out
  assert queries_of(workdir) == {rule}
  # Training domains are no targets.
  code, _, err = commands.launch(
    'evaluate', f'--workdir={workdir}', '--set=data.targets=("café",)'
  )
  assert code == 3 and "['café'] are trained on and tested on" in err
  one = photo_trees.one_data_set(tmp_path / 'elsewhere')
  code, out, err = commands.launch(
    'evaluate', f'--workdir={workdir}', f'--set=data.root={one}'
  )
  assert code == 0 and 'queries 36,' in out, err  # 12 persons, three cameras


PUBLISHED = (
  *SMALL,
  '--config.data.height=64',  # too few pixels are left of 24x12
  '--config.data.width=32',
)


@pytest.mark.slow
@pytest.mark.parametrize(
  'write, size, flags, clients, rule',
  [
    (
      photo_trees.one_data_set,
      PUBLISHED,
      ('--config.data.client_split=by_camera',),
      3,
      'one random image per identity and camera',
    ),
    (photo_trees.boxes, TINY, (), 1, 'as listed'),
  ],
)
def test_one_data_set_trains_on_the_first_try(
  tmp_path, write, size, flags, clients, rule
):
  """With several clients and published weights, and with one client."""
  root, workdir = write(tmp_path / 'Fotos'), tmp_path / 'w'
  code, out, err = train(root, workdir, *flags, size=size)
  assert code == 0, err
  assert f'\nquery: {rule}\n' in out and not err
  assert queries_of(workdir) == {rule}
  described = json.loads((workdir / 'run.json').read_text())
  assert len(described['clients']) == clients


def test_a_preset_for_drawings_refuses_photographs(tmp_path):
  root = photo_trees.domains(tmp_path / 'Fotos')
  code, _, err = train(
    root,
    tmp_path / 'w',
    '--config.data.targets=("駅",)',
    '--config.data.query=first',
    recipe='fedpav:omniglot',
  )
  assert (code, err.splitlines()) == (
    2,
    [
      f'error[2]: colour images would be made grey and inverted — {root} — use '
      'the preset photos, or write data.channels=grey and data.invert=True if '
      'that is meant'
    ],
  )
  assert not (tmp_path / 'w').exists()
