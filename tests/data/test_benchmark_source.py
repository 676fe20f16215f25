"""Every published data set, from a miniature on disk to clients and tests."""

import json
import shutil

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data import load
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.options import Data

TRAINED = ('market1501', 'msmt17', 'cuhk03-np', 'sysu-mm01', 'regdb', 'llcm')
HALVES = ('viper', 'prid2011', 'grid', 'qmul-ilids', '3dpes', 'caviar4reid')


def config(root, **changes):
  return Data(
    **{'source': 'datasets', 'root': str(root), 'height': 16, 'width': 8}
    | changes
  )


def read(data):
  return load.load(data, clients=bool(data.sources))


@pytest.mark.parametrize('name', TRAINED)
def test_train_on_one_and_rank_its_own_test_set(minis, name):
  out = read(
    config(minis(name), sources=(name,), targets=(name,), allow_overlap=True)
  )
  (client,), (target,) = out.clients, out.targets
  assert client.name == name
  assert client.images().shape == (client.num_images, 16, 8, 3)
  assert set(client.labels) == set(range(client.num_identities))
  own = target.images
  for query, gallery in target.trials:
    assert len(query) and len(gallery)
    assert not set(query) & set(gallery)
    found = np.isin(own.identities[query], own.identities[gallery])
    assert found.all()
  many = name in ('sysu-mm01', 'llcm')
  assert len(target.trials) == (10 if many else 1)
  assert target.protocol == registry.get(name).protocol


@pytest.mark.parametrize('name', HALVES)
def test_small_sets_have_ten_halves_kept_as_json(minis, name):
  (target,) = read(config(minis(name), targets=(name,))).targets
  assert len(target.trials) == 10 and target.protocol == 'single_shot'
  for query, gallery in target.trials:
    people = target.images.identities
    assert len(set(people[query])) == len(query)
    assert set(people[query]) <= set(people[gallery])
  again = json.loads(json.dumps(target.splits))
  assert len(again['splits']) == 10 and again['seed'] == 0
  (other,) = read(config(minis(name), targets=(name,), world_seed=1)).targets
  assert other.splits['splits'] != again['splits']


def test_all_of_several_under_one_root(minis, tmp_path):
  for name in ('market1501', 'viper', 'cuhk02'):
    (tmp_path / name).symlink_to(minis(name))
  out = read(
    config(tmp_path, sources=('market1501', 'cuhk02'), targets=('viper',))
  )
  assert [c.name for c in out.clients] == ['cuhk02', 'market1501']


@pytest.mark.parametrize('direction', ['infrared-visible', 'visible-infrared'])
@pytest.mark.parametrize(
  'name', ['sysu-mm01', 'llcm', 'regdb', 'hitsz-vcm', 'buptcampus']
)
def test_directions_of_visible_infrared(minis, name, direction):
  both = name in ('sysu-mm01', 'llcm')  # whose records have no direction
  spec = name if both else f'{name}:direction={direction}'
  (target,) = read(
    config(minis(name), targets=(spec,), direction=direction)
  ).targets
  asked = direction.partition('-')[0] == 'infrared'
  assert target.direction == direction
  for query, gallery in target.trials:
    assert (target.images.modalities[query] == asked).all()
    assert (target.images.modalities[gallery] != asked).all()


def test_sysu_modes_shots_and_samplings(minis):
  sizes = {}
  for search in ('all', 'indoor'):
    for shots in (1, 10):
      for sampling in ('agw', 'official'):
        (target,) = read(
          config(
            minis('sysu-mm01'),
            targets=('sysu-mm01',),
            search=search,
            shots_per_camera=shots,
            gallery_sampling=sampling,
          )
        ).targets
        gallery = target.trials[0].gallery
        cameras = set(target.images.cameras[gallery].tolist())
        assert cameras <= ({1, 2} if search == 'indoor' else {1, 2, 4, 5})
        sizes[search, shots, sampling] = len(gallery)
  assert sizes['all', 1, 'agw'] == sizes['all', 1, 'official']
  assert sizes['all', 10, 'agw'] > sizes['all', 1, 'agw']
  assert sizes['all', 1, 'agw'] > sizes['indoor', 1, 'agw']


def test_regdb_model_of_another_trial_is_refused(minis):
  with pytest.raises(errors.ConfigError, match='trained on RegDB trial 1'):
    read(
      config(
        minis('regdb'),
        sources=('regdb:trial=1',),
        targets=('regdb:trial=2',),
        allow_overlap=True,
      )
    )


def test_source_that_is_target_and_sets_without_a_side(minis):
  market = minis('market1501')
  # Training and test persons of one set differ: its own test set may be ranked.
  read(config(market, sources=('market1501',), targets=('market1501',)))
  cuhk = minis('cuhk03')
  with pytest.raises(errors.DataError, match='same persons'):
    read(config(cuhk, sources=('cuhk03:trial=0',), targets=('cuhk03:trial=1',)))
  with pytest.raises(errors.ConfigError, match='no data set to learn from'):
    load.load(config(market, targets=('market1501',)))
  with pytest.raises(errors.DataError, match='split=half'):
    read(config(minis('viper'), sources=('viper',)))


def test_person_0_of_a_manifest_is_a_person(manifest_with_person_0):
  root = manifest_with_person_0
  with pytest.raises(errors.DataError, match='same persons'):
    read(config(root, sources=('csv',), targets=('csv',)))


def test_data_sets_that_show_the_same_persons_are_named(minis, tmp_path):
  """CUHK02 contains CUHK01: learned without labels, or on purpose."""
  for name in ('cuhk01', 'cuhk02', 'viper'):
    (tmp_path / name).symlink_to(minis(name))
  half, spec = 'cuhk01:split=half', 'cuhk02:split=public'
  out = read(config(tmp_path, sources=('viper:split=half',), targets=(half,)))
  assert not out.notices
  out = read(
    config(
      tmp_path,
      sources=('viper:split=half', half),
      targets=(half, 'viper:split=half'),
      public=spec,
      allow_overlap=True,
    )
  )
  told = f'{spec} (public) and {half} (tested on) show the same persons'
  assert out.notices == (told,)
  swapped = {'sources': ('cuhk02',), 'targets': (half,)}
  out = read(config(tmp_path, **swapped, allow_overlap=True))
  assert out.notices == (
    told.replace(f'{spec} (public)', 'cuhk02 (trained on)'),
  )
  with pytest.raises(errors.DataError, match='same persons'):
    read(config(tmp_path, **swapped))


def test_camera_clients_of_visible_infrared(minis):
  out = read(
    config(
      minis('sysu-mm01'),
      sources=('sysu-mm01',),
      client_split='camera_independent',
    )
  )
  assert len(out.clients) == 6
  assert len({c.num_identities for c in out.clients}) == 1
  infrared = {c.name for c in out.clients if c.modalities.all()}
  assert infrared == {'sysu-mm01.camera3', 'sysu-mm01.camera6'}


def test_cameras_of_llcm_see_both_modalities_but_one(minis):
  out = read(
    config(minis('llcm'), sources=('llcm',), client_split='camera_independent')
  )
  kinds = {c.name: set(c.modalities.tolist()) for c in out.clients}
  assert len(kinds) == 9
  assert kinds.pop('llcm.camera3') == {0}
  assert all(own == {0, 1} for own in kinds.values())


def test_a_file_of_one_set_among_the_tests_of_another_is_refused(
  minis, tmp_path
):
  for name in ('market1501', 'viper'):
    shutil.copytree(minis(name), tmp_path / name)
  train = sorted((tmp_path / 'market1501/bounding_box_train').iterdir())
  query = sorted((tmp_path / 'market1501/query').iterdir())
  gallery = sorted((tmp_path / 'viper/cam_b').iterdir())
  both = {'sources': ('market1501',), 'targets': ('viper',)}
  shutil.copyfile(query[0], gallery[0])  # not a training image
  assert read(config(tmp_path, **both)).clients
  shutil.copyfile(train[0], gallery[1])
  with pytest.raises(errors.DataError) as caught:
    read(config(tmp_path, **both))
  assert '1 of 20 files of viper is in market1501 too' in caught.value.line()
  assert read(config(tmp_path, **both, allow_overlap=True)).clients


def test_a_misspelt_name_comes_before_a_missing_folder(tmp_path):
  names = {'sources': ('market1501',), 'targets': ('msmt71',)}
  with pytest.raises(errors.ConfigError, match="unknown data set 'msmt71'"):
    load.load(config(tmp_path, **names))
