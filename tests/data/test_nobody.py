"""Distractors and junk of Market-1501 in every layout of a folder."""

import csv

import numpy as np
import photo_trees
import pytest

from fedreid_jax import errors
from fedreid_jax.data import load
from fedreid_jax.data.federation import NOBODY
from fedreid_jax.data.folder import folder_layout

PEOPLE = [f'{person:04d}' for person in range(1, 5)]


def files(person, domain=0):
  """Names of two images of a person by each of two cameras, and numbers."""
  number = 10 * int(person) + 1000 * domain
  for shot in range(4):
    name = f'{person}_c{shot % 2 + 1}s1_{shot:06d}_01.jpg'
    yield name, abs(number), shot


def save(folder, people, domain=0, below=False):
  for person in people:
    for name, number, shot in files(person, domain):
      path = folder / person / name if below else folder / name
      photo_trees.save(path, number, shot)


def flat(root):
  save(root, [*PEOPLE, '0000', '-1'])


def identity_image(root):
  save(root, [*PEOPLE, '0000', '-1'], below=True)


def domain_image(root):
  save(root / 'a', [*PEOPLE, '0000', '-1'], 1)
  save(root / 'b', [*PEOPLE, '0000', '-1'], 2)


def domain_identity_image(root):
  save(root / 'a', [*PEOPLE, '0000', '-1'], 1, below=True)
  save(root / 'b', [*PEOPLE, '0000', '-1'], 2, below=True)


def boxes(root):
  """Distractors among the queries and the training images, too."""
  save(root / 'bounding_box_train', [*PEOPLE[:2], '0000', '-1'], 1)
  save(root / 'query', [*PEOPLE[2:], '0000'], 2)
  save(root / 'bounding_box_test', [*PEOPLE[2:], '-1'], 3)


def manifest(root):
  save(root, [*PEOPLE, '0000', '-1'])
  with open(root / 'manifest.csv', 'w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(['path', 'identity', 'camera'])
    for person in (*PEOPLE, '0000', '-1'):
      writer.writerows(
        [name, person, shot % 2] for name, _, shot in files(person)
      )


@pytest.mark.parametrize(
  'make, learned, distractors',
  [
    (flat, 2, 4),
    (identity_image, 2, 4),
    (domain_image, 4, 4),
    (domain_identity_image, 4, 4),
    (boxes, 2, 4),
    (manifest, 2, 4),
  ],
)
def test_nobody_is_learned_or_asked_for(tmp_path, make, learned, distractors):
  make(tmp_path)
  data = {'root': str(tmp_path), 'height': 24, 'width': 12, 'held_out': 0.5}
  loaded = load.load(photo_trees.configured(data))
  (client,), (target,) = loaded.clients, loaded.targets
  assert (client.num_identities, client.num_images) == (learned, 4 * learned)
  own = target.images.identities
  ((query, gallery),) = target.trials
  assert np.count_nonzero(own == NOBODY) == distractors
  assert (own[query] != NOBODY).all()
  assert np.count_nonzero(own[gallery] == NOBODY) == distractors
  assert len(target.images.people) == (2 if learned == 2 else 4)
  assert any('nobody, as in Market-1501: ' in line for line in loaded.notices)


def test_msmt17_numbers_persons_from_0000(tmp_path):
  for person in range(3):
    for k in range(2):
      name = f'{person:04d}_{k:03d}_0{k + 1}_0303morning_0004_{k}.jpg'
      photo_trees.save(tmp_path / f'a/{person:04d}/{name}', person, k)
  data = {'root': str(tmp_path), 'height': 24, 'width': 12, 'held_out': 0}
  (client,) = load.load(photo_trees.configured(data)).clients
  assert client.num_identities == 3


def test_a_folder_of_nobody_is_refused(tmp_path):
  save(tmp_path, ['0000', '-1'])
  config = photo_trees.configured({'root': str(tmp_path)})
  with pytest.raises(errors.DataError, match='no image of a person'):
    load.load(config)


@pytest.mark.parametrize(
  'name, person',
  [('office/0000/c1_1.jpg', '0000'), ('office/9/0000_C1S1_1.jpg', '')],
)
def test_0000_is_nobody_in_names_of_market_1501_only(tmp_path, name, person):
  for path in (name, 'office/0002/c1_1.jpg'):
    photo_trees.save(tmp_path / path, 0, 0)
  found = folder_layout.find(tmp_path, folder_layout.Patterns(), False)
  assert sorted(found.read('office').identities) == [person, '0002']


def test_a_manifest_knows_who_is_nobody(tmp_path):
  persons = {'a.jpg': '0000', '0000_c1s1_000.jpg': 'ann', 'b.jpg': '-1'}
  persons['0000_c2s1_000.jpg'] = '0000'
  lines = [f'{name},{person}\n' for name, person in persons.items()]
  (tmp_path / 'manifest.csv').write_text('path,identity\n' + ''.join(lines))
  for name in persons:
    photo_trees.save(tmp_path / name, 0, 0)
  found = folder_layout.find(tmp_path, folder_layout.Patterns(), False)
  listing = found.read(tmp_path.name)
  assert dict(zip(listing.names, listing.identities, strict=True)) == {
    'a.jpg': '0000',
    '0000_c1s1_000.jpg': 'ann',
    '0000_c2s1_000.jpg': '',
  }
