import os
import shutil

import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data import load
from fedreid_jax.data.folder import doctor
from fedreid_jax.data.options import Data


def config(root, **changes):
  given = {'source': 'folder', 'root': str(root), 'query': 'first'}
  return Data(**given | {'height': 4, 'width': 3} | changes)


@pytest.fixture
def root(tmp_path):
  """Two domains; identities 5, 12, 900; red = identity + camera."""
  for domain in ('north', 'south'):
    for person in (5, 12, 900):
      for camera in (1, 2):
        path = tmp_path / 'data' / domain / str(person) / f'x_{camera}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        value = person % 100 + camera
        Image.new('RGB', (3, 4), (value, len(domain), ord(domain[0]))).save(
          path
        )
  return tmp_path / 'data'


def failure(root, **changes):
  with pytest.raises((errors.DataError, errors.ConfigError)) as caught:
    load.load(config(root, **changes))
  return caught.value


def test_every_domain_that_is_no_target_is_a_client(root):
  loaded = load.load(config(root))
  assert [c.name for c in loaded.clients] == ['north', 'south']
  client = loaded.clients[0]
  assert client.num_identities == 3 and client.num_images == 6
  assert client.cameras.tolist() == [0, 1] * 3
  assert loaded.image_shape == (4, 3, 3) and loaded.targets == ()


def test_sparse_labels_become_dense_in_order_of_their_names(root):
  (client,) = load.load(config(root, sources=('north',))).clients
  values = client.images()[:, 0, 0, 0]
  by_label = {
    int(label): set((values[client.labels == label] // 3 * 3).tolist())
    for label in range(3)
  }
  assert by_label == {0: {12}, 1: {6}, 2: {0}}  # '12' < '5' < '900'


def test_target_is_split_by_the_query_rule(root):
  loaded = load.load(config(root, targets=('south',)))
  (target,) = loaded.targets
  assert [c.name for c in loaded.clients] == ['north']
  ((query, gallery),) = target.trials
  assert len(query) == len(gallery) == 3
  loaded = load.load(config(root, targets=('south',), query='camera=2'))
  target = loaded.targets[0]
  assert (target.images.cameras[target.trials[0].query] == 1).all()


def test_grey_and_digest(root):
  with pytest.raises(errors.ConfigError, match='would be made grey'):
    load.load(config(root, channels='grey'))
  grey = load.load(config(root, channels='grey', colour_as=('grey',)))
  assert grey.image_shape == (4, 3, 1)
  assert grey.clients[0].images().shape == (6, 4, 3, 1)
  assert grey.digest != load.load(config(root)).digest


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'root': ''}, 'no folder given — data.root'),
    ({'sources': ('east',)}, "no domain 'east'"),
    (
      {'sources': ('north',), 'targets': ('north',)},
      "['north'] are trained on and tested on — data.targets — "
      'drop them from data.sources or set data.allow_overlap',
    ),
    (
      {'camera_pattern': r'5/x_(\d)'},
      r"'12/x_1.png' does not match '5/x_(\\d)'",
    ),
    (
      {'sources': ('north', 'south'), 'held_out': 0.5, 'targets': ('south',)},
      "['south'] are trained on and tested on",
    ),
    (
      {'sources': ('north',), 'targets': ('north', 'south')},
      "['north'] are trained on and tested on",
    ),
    ({'targets': ('north', 'south')}, 'no domain to train on but north, south'),
    (
      {'targets': ('south',), 'camera_pattern': '', 'query': 'camera=1'},
      "no camera '1' in south — data.query — names have no cameras",
    ),
    (
      {'camera_pattern': r'cam(\d)', 'client_split': 'by_camera'},
      'nothing is known of the cameras of north — data.client_split',
    ),
    ({'identity_pattern': r'^([a-z]+)/'}, 'change data.identity_pattern'),
    (
      {'targets': ('south',), 'query': 'camera=3'},
      "no camera '3' in south — data.query — cameras are 1, 2",
    ),
    ({'targets': ('south',), 'query': 'last'}, "unknown query rule 'last'"),
    (
      {'targets': ('south',), 'query': 'camera=1+2'},
      'no gallery image in south',
    ),
  ],
)
def test_messages(root, changes, message):
  assert message in failure(**{'root': root, **changes}).line()


def test_nothing_to_read(root, tmp_path):
  (tmp_path / 'bare').mkdir()
  assert 'no domain folders' in failure(tmp_path / 'bare').line()
  (root / 'empty').mkdir()
  assert failure(root).line() == (
    f'error[3]: no images — {root}/empty — remove the domain'
  )


def test_what_a_folder_has_in_place_of_images(root):
  for name in ('notes.txt', '@eaDir/x.jpg/THUMB.jpg'):
    (root / 'empty' / name).parent.mkdir(parents=True, exist_ok=True)
    (root / 'empty' / name).touch()
  (root / 'empty/notes.txt').rename(root / 'empty/.notes.txt')
  assert 'no images; left out: 1 image in @eaDir, which' in failure(root).line()


def test_an_image_in_no_folder_is_noted(root):
  Image.new('RGB', (3, 4)).save(root / 'stray.png')
  assert (
    load.load(config(root))
    .notices[1]
    .startswith(f'left out: 1 image directly in {root}, such as stray.png;')
  )


def test_unreadable_images_stop_or_are_left_out(root):
  bad = root / 'north/5/x_1.png'
  bad.write_bytes(bad.read_bytes()[:20])
  assert (
    '1 of 6 images cannot be read (1 .png): 5/x_1.png' in failure(root).line()
  )
  loaded = load.load(config(root, on_bad_image='skip'))
  assert loaded.clients[0].num_images == 5
  for path in root.glob('north/*/*'):
    path.write_bytes(b'')
  line = failure(root, on_bad_image='skip').line()
  assert 'no readable image' in line


def test_a_copied_domain_is_refused_and_counted(root):
  shutil.copytree(root / 'north', root / 'east')
  (root / 'east/5/x_1.png').rename(root / 'east/5/other_1.png')
  Image.new('RGB', (3, 4), (77, 0, 0)).save(root / 'east/5/x_2.png')
  both = dict(sources=('north', 'south'), targets=('east',))
  assert failure(root, **both).line() == (
    'error[3]: trained on and tested on: 5 of 6 files of east are in north too '
    '— data.targets — remove the copies, or set data.allow_overlap'
  )
  assert load.load(config(root, **both, allow_overlap=True)).targets
  assert load.load(config(root, **both), clients=False).targets
  (loaded,) = load.load(
    config(root, sources=('south',), targets=('east',))
  ).clients
  assert loaded.num_images == 6


def test_domains_that_are_links_or_have_no_plain_name(root, tmp_path):
  (tmp_path / 'elsewhere').mkdir()
  for target, what in (
    (tmp_path / 'elsewhere', 'link leads out of the folder'),
    (root / 'north', 'link leads to a folder'),
  ):
    (root / 'west').symlink_to(target)
    assert f'{what} — {root}/west' in failure(root).line()
    (root / 'west').unlink()
  (root / 'ev\x1b[31mil').mkdir()
  line = failure(root).line()
  assert line.isprintable() and r"'ev\x1b[31mil' has control" in line
  (root / 'ev\x1b[31mil').rmdir()
  os.mkdir(os.fsencode(root) + b'/\xff')
  assert r"b'\xff' is not UTF-8" in failure(root).line()


def test_a_domain_may_be_both_when_allowed(root):
  loaded = load.load(
    config(root, sources=('north',), targets=('north',), allow_overlap=True)
  )
  assert loaded.clients[0].num_images == 6 and len(loaded.targets) == 1


def test_one_image_of_one_person_is_a_client(tmp_path):
  path = tmp_path / 'lonely/7/x_1.png'
  path.parent.mkdir(parents=True)
  Image.new('RGB', (3, 4)).save(path)
  (client,) = load.load(config(tmp_path)).clients
  assert (client.num_images, client.num_identities) == (1, 1)
  np.testing.assert_array_equal(client.labels, [0])


def test_folders_of_a_split_are_no_domains(root):
  (root / 'north').rename(root / 'Query')
  (root / 'south').rename(root / 'test')
  said = 'the folders Query, test are parts of a split'
  assert said in failure(root).what
  assert said in doctor.examine(root).report.findings[0].what
  loaded = load.load(config(root, sources=('Query',), targets=('test',)))
  assert any(
    '3 names of persons of Query and of test, such as 12' in line
    for line in loaded.notices
  )


def test_names_that_domains_share_are_noted(root):
  for domain in ('north', 'south'):
    (root / domain / '5').rename(root / domain / 'ann')
  (line,) = doctor.examine(root).notes
  assert line.startswith('1 name of persons of north and of south, such as ann')
