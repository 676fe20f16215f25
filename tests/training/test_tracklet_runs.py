"""Runs on tracklets of the miniatures, with every camera a client."""

import shutil

import numpy as np
import pytest
import toy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.data import load
from fedreid_jax.data.options import Data

FIELDS = {
  'data.source': 'datasets',
  'data.sources': ('hitsz-vcm',),
  'data.targets': ('hitsz-vcm:frames=6', 'buptcampus'),
  'data.allow_overlap': True,
  'data.height': 16,
  'data.width': 8,
  'model.name': 'convnet',
  'model.features': (4, 8),
  'local.frames': 3,
  'local.batch': 8,
  'local.identities': 2,
  'rounds': 2,
}


@pytest.mark.slow
@pytest.mark.parametrize('local', ['base', 'dppt'])
def test_cameras_train_on_tracklets_and_are_tested_on_both(
  minis, tmp_path, local
):
  for name in ('hitsz-vcm', 'buptcampus'):
    (tmp_path / name).symlink_to(minis(name))
  config = fr.load_config(f'dppt:smoke,local={local}')
  fields = {**FIELDS, 'data.root': str(tmp_path)}
  with config.unlocked():
    for name, value in fields.items():
      group, _, field = name.rpartition('.')
      (config[group] if group else config)[field] = value
  results = fr.train(config, workdir=str(tmp_path / 'run'))
  last = results['evaluation'][-2:]
  counts = {e['target']: (e['queries'], e['gallery']) for e in last}
  assert counts == {'hitsz-vcm': (15, 15), 'buptcampus': (5, 10)}
  assert {e['protocol'] for e in last} == {'vcm', 'buptcampus'}
  for entry in last:
    assert 0 < entry['metrics']['mAP'] <= 100
  # The loss is that of tracklets, and is finite.
  model = fr.load(str(tmp_path / 'run'))
  assert all(np.isfinite(x).all() for x in model.variables.values())


def test_a_camera_has_both_modalities_and_whole_tracklets(minis):
  data = Data(
    source='datasets',
    root=str(minis('hitsz-vcm')),
    sources=('hitsz-vcm',),
    client_split='camera_independent',
    height=16,
    width=8,
  )
  clients = load.load(data).clients
  assert [c.name for c in clients] == [
    f'hitsz-vcm.camera{k}' for k in range(1, 7)
  ]
  for client in clients:
    assert {*client.modalities} == {0, 1} and client.num_identities == 5
    assert {*np.bincount(client.tracklets).tolist()} == {0, 12}
  sizes = sum(len({*c.tracklets.tolist()}) for c in clients)
  assert sizes == 30  # five persons by three cameras, twice


def test_a_damaged_set_ends_before_training(mini_copy):
  root = mini_copy('buptcampus')
  shutil.rmtree(root / 'DATA/6')
  data = Data(source='datasets', root=str(root), targets=('buptcampus',))
  with pytest.raises(errors.DataError, match='listed files are missing'):
    load.load(data, clients=False)


@pytest.mark.parametrize('spec', ['mall:infrared=2', 'mall:shots=6'])
def test_rendered_shots_are_frames(spec):
  data = Data(
    sources=('plaza:shots=5',),
    targets=(spec,),
    identities=3,
    target_identities=3,
    target_shots=4,
    tracklet=2,
    cameras=2,
    height=16,
    width=8,
  )
  found = load.load(data)
  (client,), (target,) = found.clients, found.targets
  # Five shots are two tracklets of two frames and one of one.
  assert client.tracklets[:10].tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 4, 5]
  own, (trial,) = target.images, target.trials
  for side in trial:
    numbers = own.tracklets[side]
    assert len({*numbers}) == len(numbers)
  every = {*own.tracklets[np.concatenate(trial)].tolist()}
  assert every == {*own.tracklets.tolist()}
  for number in every:
    rows = own.tracklets == number
    assert (
      len({*zip(own.identities[rows], own.cameras[rows], strict=True)}) == 1
    )
  assert load.load(toy.replaced(data, {'tracklet': 0})).digest != found.digest


def test_the_recipe_names_its_data_sets():
  for name in ('vcm', 'bupt'):
    config = validation.validate(recipes.recipe('dppt', name))
    assert config.data.source == 'datasets' and config.augment.pad == 10
