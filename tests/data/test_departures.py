"""Clients and persons that a run leaves out."""

import numpy as np
import photo_trees
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import load as configs
from fedreid_jax.config import parsing, recipes, schema, validation
from fedreid_jax.data import departures, load
from fedreid_jax.data.federation import NOBODY, Images

FIELDS = {'data.sources': ('plaza', 'campus', 'station')}


def config(**fields):
  own = {f'data.{name}': value for name, value in fields.items()}
  return toy.replaced(toy.synthetic_config(), FIELDS | own).data


def domain(name='mall', people=4, persons=()):
  """Two images of each person and one of nobody; pixels tell rows apart."""
  identities = np.repeat([*range(people), NOBODY], [2] * people + [1])
  rows = len(identities)
  pixels = np.arange(rows, dtype=np.uint8).reshape(-1, 1, 1, 1)
  zeros = np.zeros(rows, np.int32)
  named = identities.astype(np.int32)
  return Images(name, lambda: pixels, named, zeros, zeros, persons=persons)


def equal(ours, theirs):
  for one, other in zip(ours, theirs, strict=True):
    assert (one.name, one.num_identities) == (other.name, other.num_identities)
    for name in ('labels', 'cameras', 'modalities'):
      np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.images(), other.images())


def test_without_a_domain_is_a_run_with_fewer_sources():
  found = load.load(config(without=('campus',)))
  never = load.load(config(sources=('plaza', 'station')))
  equal(found.clients, never.clients)


def test_without_a_person_the_other_images_stay():
  (left,), others = departures.of_domains([domain()], ['mall/2'])
  assert others == ()
  assert left.identities.tolist() == [0, 0, 1, 1, 3, 3, NOBODY]
  assert left.images().ravel().tolist() == [0, 1, 2, 3, 6, 7, 8]
  (gone,) = departures.removed([domain(), domain('yard')], ['mall/2', 'x'])
  assert gone.images().ravel().tolist() == [4, 5]


def test_a_person_of_several_cameras_leaves_all_their_clients():
  fields = {'client_split': 'by_camera', 'sources': ('plaza',)}
  before = load.load(config(**fields)).clients
  after = load.load(config(**fields, without=('plaza/1',))).clients
  assert [c.name for c in before] == [c.name for c in after]
  assert {
    a.num_images - b.num_images for a, b in zip(before, after, strict=True)
  } == {2}


def test_a_part_of_a_domain_leaves_the_other_parts_as_they_are():
  fields = {'client_split': 'by_camera', 'sources': ('plaza',)}
  before = load.load(config(**fields)).clients
  after = load.load(config(**fields, without=('plaza.camera1',))).clients
  equal(after, [c for c in before if c.name != 'plaza.camera1'])


def test_persons_of_a_folder_have_its_names(tmp_path):
  for number, name in enumerate(('anna', 'bert', 'carl', 'dora')):
    for shot in range(2):
      path = tmp_path / 'yard' / name / f'{name}_0{shot}.jpg'
      photo_trees.save(path, number, shot)
  chosen = toy.replaced(
    toy.toy_config(),
    {
      'data.source': 'folder',
      'data.root': str(tmp_path),
      'data.sources': ('yard',),
      'data.targets': (),
      'data.colour_as': ('grey',),
      'data.without': ('yard/bert',),
    },
  ).data
  (yard,) = load.read(chosen).domains
  assert yard.persons == ('anna', 'bert', 'carl', 'dora')
  assert departures.full_name([yard], 'bert') == 'yard/bert'
  (client,) = load.load(chosen).clients
  assert (client.num_identities, client.num_images) == (3, 6)
  with pytest.raises(errors.ConfigError, match="'berta'.* mean yard/bert"):
    departures.full_name([yard], 'berta')


def test_a_name_in_two_domains_must_be_chosen():
  both = [domain('mall'), domain('yard')]
  with pytest.raises(errors.ConfigError, match='=mall/3 --identity=yard/3'):
    departures.full_name(both, '3')
  assert departures.full_name(both, 'yard/3') == 'yard/3'
  assert departures.full_name([domain(), domain('yard', 6)], '5') == 'yard/5'
  for given, text in (
    ('mal/3', 'did you mean mall/3?'),
    ('nobody', r'there are mall/0, .*, yard/3, \.\.\.'),
  ):
    with pytest.raises(errors.ConfigError, match=text):
      departures.full_name([domain('mall'), domain('yard', 9)], given)


@pytest.mark.parametrize(
  'names, message',
  [
    (['mall/9'], "no person '9' in the training images of mall"),
    (['mall/-2'], "no person '-2'"),
    (['mall/0', 'mall/1', 'mall/2', 'mall/3'], 'nobody is left in mall'),
    (['mall', 'yard'], 'no client is left'),
  ],
)
def test_who_cannot_be_left_out(names, message):
  with pytest.raises(errors.ConfigError, match=message) as info:
    departures.of_domains([domain(), domain('yard')], names)
  assert info.value.where == 'data.without'


def test_an_unknown_client_has_a_near_name():
  with pytest.raises(errors.ConfigError, match='did you mean campus'):
    load.load(config(without=('canpus',)))
  with pytest.raises(errors.ConfigError, match='no client is left'):
    load.load(
      config(
        client_split='by_camera',
        sources=('plaza',),
        without=('plaza.camera0', 'plaza.camera1'),
      )
    )


def test_a_poisoned_client_may_leave():
  fields = {'poison': 'merge', 'poisoned': ('campus',)}
  found = load.load(config(**fields, without=('campus',)))
  equal(found.clients, load.load(config(sources=('plaza', 'station'))).clients)


def test_the_departed_are_not_held_out():
  chosen = config(identities=12, without=('plaza/3',))
  found = load.load(chosen, held_out=0.5)
  tests = {target.name: target.images for target in found.targets}
  assert 3 not in tests['validation:plaza'].people
  assert 3 not in tests.get('plaza', tests['validation:plaza']).people


def test_a_domain_that_was_one_client_beside_cameras_may_leave():
  fields = {'client_split': 'by_camera', 'undivided': ('campus',)}
  found = load.load(config(**fields, without=('campus',)))
  never = config(client_split='by_camera', sources=('plaza', 'station'))
  equal(found.clients, load.load(never).clients)


def test_classes_stay_numbered():
  chosen = recipes.recipe('dfh', 'smoke')
  chosen.data.without = ('plaza/1',)
  chosen.data.task = 'classification'
  with pytest.raises(errors.ConfigError, match='number all classes'):
    validation.validate(chosen)


def test_nobody_left_out_is_no_part_of_a_run():
  plain, changed = (recipes.recipe('dfh', 'smoke') for _ in range(2))
  assert 'data.without' not in parsing.flatten(configs.to_json(plain))
  changed.data.without = ('plaza',)
  assert configs.to_json(changed)['data']['without'] == ['plaza']
  assert schema.later() == {'data.without': ()}
  saved = configs.from_json(configs.to_json(changed), [], 'config.json')
  assert saved.data.without == ('plaza',)
