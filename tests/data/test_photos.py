"""Folders of photographs of every layout, as the preset `photos` reads them."""

import shutil

import numpy as np
import photo_trees
import pytest
from photo_trees import PLACES

from fedreid_jax import errors
from fedreid_jax.data import load
from fedreid_jax.evaluation.evaluators.retrieval import evaluate_retrieval


def config(root, **changes):
  fields = {'root': str(root), 'height': 24, 'width': 12} | changes
  return photo_trees.configured(fields)


def failure(root, **changes):
  with pytest.raises((errors.DataError, errors.ConfigError)) as caught:
    load.load(config(root, **changes))
  return caught.value.line()


def described(loaded):
  """Returns the clients and targets by name, with their numbers of images."""
  return (
    {c.name: (c.num_images, c.num_identities) for c in loaded.clients},
    {
      t.name: (len(t.trials[0].query), len(t.trials[0].gallery))
      for t in loaded.targets
    },
  )


def score(target):
  """Returns the scores of features that are the mean colours of the halves."""
  pixels = target.images.images().astype(np.float32)
  found = pixels.reshape(len(pixels), 2, -1, 3).mean(axis=2).reshape(-1, 6)
  (trial,), own = target.trials, target.images
  return evaluate_retrieval(
    found[trial.query],
    found[trial.gallery],
    own.identities[trial.query],
    own.identities[trial.gallery],
    own.cameras[trial.query],
    own.cameras[trial.gallery],
  )


def test_domains_with_cameras(tmp_path):
  root = photo_trees.domains(tmp_path / 'ふぉと')
  loaded = load.load(config(root))
  clients, targets = described(loaded)
  assert clients == dict.fromkeys(sorted(PLACES[:3]), (16, 4))
  assert targets == {'駅': (8, 8)}
  assert loaded.targets[0].query == 'one random image per identity and camera'
  assert loaded.notices == (
    f'{root} (domain/identity/image): 4 domains, 16 identities, 64 images, '
    '8 cameras from names; test on 駅',
  )
  assert loaded.sources == tuple(sorted(PLACES[:3]))


def test_every_kind_of_file_is_decoded_alike(tmp_path):
  # Turned, CMYK and palette files show the same persons as the others do.
  (target,) = load.load(config(photo_trees.domains(tmp_path / 'a'))).targets
  found = score(target)
  assert found['rank1'] == found['mAP'] == 100
  assert found['invalid_queries'] == 0


def test_domains_without_cameras_lose_no_match(tmp_path):
  root = photo_trees.domains(tmp_path / 'a', cameras=False)
  loaded = load.load(config(root, targets=('Straße',)))
  (target,) = loaded.targets
  assert described(loaded)[1] == {'Straße': (4, 12)}
  assert target.query == 'one random image per identity (no cameras)'
  assert 'no cameras; test on Straße' in loaded.notices[0]
  found = score(target)
  assert found['mAP'] == 100 and found['invalid_queries'] == 0
  assert {*loaded.clients[0].cameras.tolist()} == {0}


def test_persons_with_one_image_are_ranked_only(tmp_path):
  root = photo_trees.domains(tmp_path / 'a', cameras=False)
  for person in (90, 91):
    photo_trees.save(root / f'駅/alone {person}/x.jpg', person, 0)
  loaded = load.load(config(root))
  assert described(loaded)[1] == {'駅': (4, 14)}
  assert loaded.notices[1] == (
    '2 identities of 駅 have no query, since they have no second image'
  )
  shutil.rmtree(root / '駅')
  photo_trees.save(root / '駅/alone/x.jpg', 90, 0)
  assert 'no identity of 駅 has two images' in failure(root)


def test_one_data_set_holds_persons_out(tmp_path):
  root = photo_trees.one_data_set(tmp_path / 'mine')
  loaded = load.load(config(root, client_split='by_camera'))
  clients, targets = described(loaded)
  assert clients == {f'mine.camera{k}': (18, 9) for k in range(3)}
  assert targets == {'mine': (9, 9)}
  (target,) = loaded.targets
  assert '3 identities are held out' in loaded.notices[0]
  tested = {image.tobytes() for image in target.images.images()}
  learned = {i.tobytes() for c in loaded.clients for i in c.images()}
  assert len(tested) == 18 and len(learned) == 54 and not tested & learned
  moved = root.rename(tmp_path / 'elsewhere')
  (again,) = load.load(config(moved, client_split='by_camera')).targets
  np.testing.assert_array_equal(again.images.images(), target.images.images())
  (other,) = load.load(config(moved, world_seed=1)).targets
  assert (other.images.images() != target.images.images()).any()
  assert load.load(config(moved, held_out=0)).targets == ()
  (alone,) = load.load(config(moved, held_out=0.5)).clients
  assert alone.num_identities == 6


def test_a_run_of_one_data_set_may_be_evaluated_on_all_of_another(tmp_path):
  root = photo_trees.one_data_set(tmp_path / 'other')
  trained_on = config(root, sources=('mine',))
  (target,) = load.load(trained_on, clients=False).targets
  assert len(target.images.identities) == 72
  assert 'no domain' in failure(root, sources=('mine',))


def test_names_of_market1501_with_more_cameras(tmp_path, minis):
  root = photo_trees.boxes(tmp_path / 'above' / 'mine')
  loaded = load.load(config(root))
  assert described(loaded) == ({'mine': (64, 4)}, {'mine': (16, 17)})
  (target,) = loaded.targets
  assert target.query == 'as listed' and score(target)['mAP'] == 100
  assert 'data.client_split=by_camera' in loaded.notices[2]
  above = load.load(config(root.parent, client_split='by_camera'))
  assert len(above.clients) == 8
  # Training images alone are one data set of which persons are held out.
  for folder in ('query', 'bounding_box_test'):
    shutil.rmtree(root / folder)
  (client,) = load.load(config(root)).clients
  assert client.num_identities == 2
  official = config(minis('market1501'))
  other = photo_trees.configured(
    dict(
      source='datasets',
      root=str(minis('market1501')),
      sources=('market1501',),
      targets=('market1501',),
      height=24,
      width=12,
    )
  )
  ours, theirs = load.load(official), load.load(other)
  pairs = [(ours.targets[0].images, theirs.targets[0].images)]
  for a, b in pairs:
    np.testing.assert_array_equal(a.images(), b.images())
  np.testing.assert_array_equal(
    ours.clients[0].images(), theirs.clients[0].images()
  )
  for side in ('query', 'gallery'):
    np.testing.assert_array_equal(
      *(getattr(x.targets[0].trials[0], side) for x in (ours, theirs))
    )
  assert score(ours.targets[0]) == score(theirs.targets[0])


@pytest.mark.parametrize(
  'columns, clients, targets, said',
  [
    (
      (),
      {'m': (36, 9)},
      {'m': (3, 9)},
      '12 identities, 48 images, no cameras; 3 identities are held out',
    ),
    (
      ('domain',),
      {PLACES[0]: (16, 4), PLACES[1]: (16, 4)},
      {PLACES[2]: (4, 12)},
      '3 domains, 12 identities, 48 images, no cameras; test on café',
    ),
    (
      ('camera', 'modality', 'split'),
      {'m': (32, 8)},
      {'m': (8, 8)},
      '12 identities, 48 images, 2 cameras from its lines; test images are',
    ),
    (
      ('domain', 'camera', 'modality', 'split'),
      {PLACES[0]: (16, 4), PLACES[1]: (16, 4)},
      {PLACES[2]: (8, 8)},
      '3 domains, 12 identities, 48 images, 6 cameras from its lines; test im',
    ),
  ],
)
def test_manifests(tmp_path, columns, clients, targets, said):
  loaded = load.load(config(photo_trees.manifest(tmp_path / 'm', *columns)))
  assert described(loaded) == (clients, targets)
  assert said in loaded.notices[0]
  assert score(loaded.targets[0])['mAP'] == 100
  listed = loaded.targets[0].query == 'as listed'
  assert listed == ('split' in columns)


def test_labels_of_a_manifest_belong_to_the_digest(tmp_path):
  root = photo_trees.manifest(tmp_path / 'm', 'camera')
  before = load.load(config(root)).digest
  assert load.load(config(root)).digest == before
  text = (root / 'manifest.csv').read_text('utf-8')
  (root / 'manifest.csv').write_text(text.replace('door 0', 'door 2'), 'utf-8')
  assert load.load(config(root)).digest != before


@pytest.mark.parametrize(
  'change, message',
  [
    (
      lambda t: t + t.splitlines()[1] + '\n',
      "bilder/000 ö.jpg' is listed",
    ),
    (lambda t: t.replace('Zoë 0 0', '', 1), 'is without an identity'),
    (lambda t: t.replace('door 0', '', 1), "no camera of 'bilder/000 ö.jpg'"),
    (lambda t: t.replace('train', 'images', 1), "of split 'images'"),
    (lambda t: t.replace('train', 'trian', 1), 'line 2 — one of train'),
    (
      lambda t: t.replace('Zoë 2 0', 'Zoë 0 0'),
      '1 identity of m is',
    ),
    (lambda t: t.replace('identity', 'who', 1), "no column 'identity'"),
    (lambda t: t.replace('000 ö', 'none'), 'listed files are missing'),
  ],
)
def test_manifests_that_are_refused(tmp_path, change, message):
  root = photo_trees.manifest(tmp_path / 'm', 'camera', 'split')
  file = root / 'manifest.csv'
  file.write_text(change(file.read_text('utf-8')), 'utf-8')
  assert message in failure(root)


def test_a_file_in_both_halves_of_one_data_set_is_refused(tmp_path):
  root = photo_trees.boxes(tmp_path / 'm')
  copied = root / 'query/0005_c1s1_000000_01.jpg'
  name = '0001_c1s1_000009_01.jpg'
  shutil.copy(copied, root / 'bounding_box_train' / name)
  assert '1 of 33 files of m is in m too' in failure(root)


def test_other_layouts(tmp_path):
  root = photo_trees.boxes(tmp_path / 'boxes') / 'bounding_box_train'
  flat = load.load(config(root))
  assert described(flat)[0] == {'bounding_box_train': (32, 2)}
  assert '(names with identities): 4 identities' in flat.notices[0]
  for domain in ('a', 'b'):
    shutil.copytree(root, tmp_path / 'domains' / domain)
  (tmp_path / 'domains/a/-1_c1s1_000000_01.jpg').touch()  # nobody
  numbered = load.load(config(tmp_path / 'domains', allow_overlap=True))
  assert '(domain/image): 2 domains, 8 identities' in numbered.notices[0]
  assert described(numbered)[0] == {'a': (64, 4)}
  for path in sorted(root.iterdir()):
    person, camera = path.name[:4], path.name[6]
    other = tmp_path / 'cameras' / f'cam{camera}' / person / path.name
    other.parent.mkdir(parents=True, exist_ok=True)
    path.rename(other)
  cameras = load.load(
    config(tmp_path / 'cameras', client_split='by_camera', held_out=0.5)
  )
  assert described(cameras)[0] == {
    f'cameras.camera{k}': (4, 2) for k in range(8)
  }
  assert '(camera/identity/image): 4 identities' in cameras.notices[0]


@pytest.mark.parametrize(
  'paths, message',
  [
    (['a.jpg'], "'a.jpg' is in no folder of an identity"),
    (['a/b/c.jpg', 'a/d.jpg'], "'d.jpg' does not match '^([^/]+)/'"),
    (['cam1/b/c.jpg', 'cam1/d.jpg'], "'cam1/d.jpg' is in no folder of an id"),
    (
      ['a/bounding_box_train/1_c1_1.jpg', 'b/bounding_box_train/1_c1_1.jpg'],
      'a is a data set of its own, with bounding_box_train',
    ),
    (['bounding_box_train/anna.jpg'], 'does not match'),
    (
      ['bounding_box_train/1_c1_1.jpg', 'query/1_c1_1.jpg'],
      'no folder bounding_box_test',
    ),
    (['a/b/c.jpg', 'd/.hidden'], 'no images'),
    (['a/.hidden'], 'no images'),
  ],
)
def test_layouts_that_are_refused(tmp_path, paths, message):
  for path in paths:
    (tmp_path / 'm' / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / 'm' / path).touch()
  assert message in failure(tmp_path / 'm')


@pytest.mark.parametrize('ends', [('HEIC', 'heic'), ('heic', 'txt')])
def test_photographs_in_other_formats_are_counted_and_named(
  tmp_path, capsys, ends
):
  root = photo_trees.domains(tmp_path / 'a', cameras=False)
  for k, end in enumerate(ends):
    (root / f'駅/Person 0 é/IMG_{k}.{end}').write_bytes(b'ftypheic')
  kinds = '2 .heic' if len({*map(str.lower, ends)}) == 1 else '1 .heic, 1 .txt'
  line = failure(root)
  assert f'2 of 18 images cannot be read ({kinds}): ' in line
  assert all(f'Person 0 é/IMG_{k}.{end}' in line for k, end in enumerate(ends))
  loaded = load.load(config(root, on_bad_image='skip'))
  assert described(loaded)[1] == {'駅': (4, 12)}
  said = capsys.readouterr().err
  assert f'2 of 18 images of {root}' in said
  assert f'cannot be read and are left out ({kinds}): ' in said


def test_16_bits_are_refused_by_name_or_left_out(tmp_path):
  root = photo_trees.domains(tmp_path / 'a', cameras=False)
  photo_trees.save(root / '駅/Person 0 é/X.png', 0, 0, '16 bits')
  line = failure(root)
  assert '1 of 17 images cannot be read (1 .png): Person 0 é/X.png' in line
  assert 'not 8 bits a channel' in line and "data.on_bad_image='skip'" in line
  loaded = load.load(config(root, on_bad_image='skip'))
  assert described(loaded)[1] == {'駅': (4, 12)}


def test_a_published_set_is_read_by_its_reader(tmp_path, minis):
  assert failure(minis('regdb')) == (
    f'error[3]: the files are named as those of RegDB — {minis("regdb")} — '
    "set data.source='datasets' and name regdb in data.sources or "
    'data.targets, see docs/datasets.md; if they are your own, set '
    'data.identity_pattern'
  )
  for domain, person, shot in np.ndindex(2, 3, 2):
    name = f'{person:04d}_{shot:03d}_0{shot + 3}_0303morning_0015_{shot}.jpg'
    path = tmp_path / f'm/{"ab"[domain]}/{person:04d}/{name}'
    photo_trees.save(path, 10 * domain + person, shot)
  reader = 'name sysu-mm01 in data.sources or data.targets'
  assert reader in failure(minis('sysu-mm01'))
  loaded = load.load(config(tmp_path / 'm'))
  assert '4 cameras from names' in loaded.notices[0]
  assert 'those of MSMT17: the camera is the third field' in loaded.notices[1]


def test_a_guessed_camera_has_an_example(tmp_path):
  root = photo_trees.one_data_set(tmp_path / 'm')
  guess = 'a guess: camera 01 from the last number of 000 人/a_01.jpg; data.cam'
  assert loaded_notice(root, 'a guess').startswith(guess)
  assert not loaded_notice(root, 'a guess', camera_pattern='')


def loaded_notice(root, start, **changes):
  found = load.load(config(root, **changes)).notices
  return next((line for line in found if line.startswith(start)), '')
