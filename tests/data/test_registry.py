import pytest

from fedreid_jax import errors
from fedreid_jax.data import protocols
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.datasets.records import SPLITS, Record

ALL = sorted(registry.DATASETS)


def test_the_papers_data_sets_are_all_there():
  assert set(ALL) >= {
    *('market1501', 'dukemtmc', 'msmt17', 'cuhk03-np', 'cuhk03', 'cuhk01'),
    *('cuhk02', 'prid2011', 'viper', '3dpes', 'qmul-ilids', 'ilids-vid'),
    *('caviar4reid', 'grid', 'cuhk-sysu', 'sysu-mm01', 'regdb', 'llcm'),
    *('hitsz-vcm', 'buptcampus', 'cifar10', 'csv'),
  }


@pytest.mark.parametrize('name', ALL)
def test_descriptions_are_whole(name):
  dataset, options = registry.parse(name)
  assert dataset.name == name and dataset.title and dataset.page
  assert dataset.protocol in {*protocols.PROTOCOLS, 'accuracy'}
  assert set(dataset.expected(options)) <= set(SPLITS)
  for option, choices in dataset.options.items():
    for choice in choices:
      assert registry.parse(f'{name}:{option}={choice}')[1][option] == choice


def test_published_counts_add_up():
  def images(spec):
    dataset, options = registry.parse(spec)
    return {s: c.images for s, c in dataset.expected(options).items()}

  assert images('market1501')['gallery'] + 3819 == 19732
  assert images('msmt17')['train'] == 30248 + images('msmt17:val=val')['val']
  assert images('msmt17:val=drop')['train'] == 30248
  assert sum(images('cuhk02').values()) == 7264
  assert sum(images('sysu-mm01').values()) == 29033 + 15712
  assert sum(images('llcm').values()) == 46767
  assert sum(images('regdb').values()) == 8240
  tested = images('buptcampus:direction=visible-infrared')['query']
  assert images('buptcampus')['query'] + tested == 101938
  cuhk_sysu = images('cuhk-sysu')
  assert cuhk_sysu['query'] + cuhk_sysu['gallery'] == 8347
  assert sum(images('grid').values()) == 1275


@pytest.mark.parametrize(
  ('spec', 'message'),
  [
    (
      'market',
      "unknown data set 'market' — dataset — did you mean market1501?",
    ),
    (
      'viper:seed=1',
      "viper has no option 'seed' — dataset — options are split",
    ),
    ('dukemtmc:val=drop', 'options are none'),
    ('regdb:trial=11', "trial='11' of regdb — dataset — one of 1, 2, 3"),
    ('regdb:trial', "'trial' of 'regdb:trial'"),
  ],
)
def test_messages(spec, message):
  with pytest.raises(errors.ConfigError) as caught:
    registry.parse(spec)
  assert message in caught.value.line()


def test_root_may_be_the_folder_or_the_one_above(tmp_path):
  dataset = registry.get('market1501')
  (tmp_path / 'Market-1501-v15.09.15').mkdir()
  inner = (tmp_path / 'Market-1501-v15.09.15').resolve()
  assert registry.locate(dataset, tmp_path) == inner
  assert registry.locate(dataset, inner) == inner


def test_a_file_in_two_splits_is_refused(tmp_path):
  def read(root):
    return [Record('a.jpg', 1, 1, 0, split) for split in ('train', 'query')]

  dataset = registry.get('dukemtmc')._replace(read=read)
  with pytest.raises(errors.DataError, match="'a.jpg' is in train and query"):
    registry.read(dataset, tmp_path)


def test_part_is_in_the_name():
  assert Record('a.mat', 1, 1, 0, 'train', (0, 2)).name == 'a.mat#0,2'
  assert Record('a.jpg', 1, 1, 0, 'train').name == 'a.jpg'
