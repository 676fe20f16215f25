"""`fedreid embed` and `fedreid search` as a user meets them."""

import json
import re
import shlex
import shutil

import commands
import numpy as np
import photo_trees
import pytest
import toy_run
from PIL import Image

import fedreid_jax as fr

FIELDS = {
  'model.name': 'convnet',
  'model.pretrained': '',
  'data.targets': ('west',),
  'data.height': 8,
  'data.width': 8,
  'model.features': (4, 8),
  'augment.pad': 1,
  'local.batch': 4,
  'evaluation.batch': 8,
  'evaluation.metric': 'cosine',
  'evaluation.flip': True,
  'execution.devices': 1,
}


@pytest.fixture(scope='module')
def world(tmp_path_factory):
  """(work directory, photographs, features of the evaluation by name).

  The run was trained on a folder that is gone; the photographs are those of its
  target, 'pN/x_0N.png'.
  """
  folder = tmp_path_factory.mktemp('world')
  rng = np.random.default_rng(0)
  for domain in ('east', 'north', 'west'):
    for person in range(4):
      place = folder / 'tree' / domain / f'p{person}'
      place.mkdir(parents=True)
      base = rng.integers(0, 256, (8, 8, 3))
      for camera in range(3):
        pixels = base + rng.integers(-20, 20, (8, 8, 3))
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        image.save(place / f'x_{camera:02}.png')
  fields = FIELDS | {'data.root': str(folder / 'tree')}
  config = fr.load_config('fedpav:photos', fields, rounds=1)
  fr.train(config, folder / 'run')
  _, ranked = toy_run.ranked(folder / 'run')
  shutil.move(folder / 'tree' / 'west', folder / 'photos')
  shutil.rmtree(folder / 'tree')
  return folder / 'run', folder / 'photos', ranked


def rows_of(text):
  """Returns (rank, distance, image) of the lines of a printed table."""
  found = re.findall(r'\b(\d+) +(-?\d\.\d{4}) +(\S.*?) *$', text, re.MULTILINE)
  return [(int(rank), float(near), image) for rank, near, image in found]


@pytest.mark.slow
def test_a_folder_is_embedded_and_searched(world, tmp_path):
  workdir, photos, ranked = world
  shutil.copytree(photos, tmp_path / 'my photos')
  (tmp_path / 'my photos/notes.txt').write_text('no image')
  out = tmp_path / 'vectors.npy'
  code, text, err = commands.launch(
    'embed',
    f'--workdir={workdir}',
    f'--images={tmp_path / "my photos"}',
    f'--out={out}',
  )
  assert code == 0
  assert err.startswith('note: skipped files') and err.endswith(': 1 .txt\n')
  assert '12 vectors of 8' in text
  np.testing.assert_array_equal(np.load(out), ranked)
  following = shlex.split(text.partition('next: ')[2])
  assert following[:2] == ['fedreid', 'search']
  query = photos / 'p2' / 'x_01.png'
  page = tmp_path / 'found.html'
  flags = [flag for flag in following[2:] if flag != '--query=IMAGE']
  code, text, err = commands.launch(
    'search', *flags, '--query', query, '--k=3', f'--out={page}'
  )
  assert (code, err) == (0, '')
  rows = rows_of(text)
  assert rows[0] == (1, 0.0, 'p2/x_01.png (same file)')
  unit = ranked / np.linalg.norm(ranked, axis=1, keepdims=True)
  expected = 1 - unit @ unit[7]
  nearest = np.argsort(expected, kind='stable')[:3]
  assert [image[:11] for _, _, image in rows] == [
    f'p{k // 3}/x_{k % 3:02}.png' for k in nearest
  ]
  np.testing.assert_allclose(
    [near for _, near, _ in rows], expected[nearest], atol=1e-4
  )
  assert 'distance: cosine' in text and 'exact matrix products' in text
  html = page.read_text()
  assert html.count('data:image/jpeg;base64,') == 4 and 'p2/x_01.png' in html
  assert page.as_uri() in text


@pytest.mark.slow
def test_a_tracklet_is_searched_among_tracklets(world, tmp_path):
  """A folder with two frames of a person, against the folders of all."""
  workdir, photos, ranked = world
  query = tmp_path / 'query'
  query.mkdir()
  for name in ('x_00.png', 'x_02.png'):
    shutil.copy(photos / 'p1' / name, query)
  code, text, err = commands.launch(
    'search',
    f'--workdir={workdir}',
    f'--gallery={photos}',
    f'--query={query}',
    '--tracklets',
    f'--out={tmp_path / "found.html"}',
  )
  assert code == 0, err
  assert 'note: fewer tracklets than --k=10 are found' in text
  assert 'gallery: 4 tracklets' in text
  rows = rows_of(text)
  means = ranked.reshape(4, 3, -1).mean(1)
  asked = ranked[[3, 5]].mean(0)
  cosines = means @ asked / np.linalg.norm(means, axis=1)
  expected = 1 - cosines / np.linalg.norm(asked)
  order = np.argsort(expected)
  assert [image for _, _, image in rows] == [
    f'p{k}/x_00.png' + ' (same file)' * int(k == 1) for k in order
  ]
  np.testing.assert_allclose(
    [near for _, near, _ in rows], expected[order], atol=1e-4
  )


@pytest.mark.slow
def test_a_folder_is_searched_at_once(world, tmp_path):
  workdir, photos, _ = world
  shutil.copytree(photos, tmp_path / 'photos')
  (tmp_path / 'photos/torn.png').write_bytes(b'\x89PNG')
  flags = (
    f'--workdir={workdir}',
    f'--gallery={tmp_path / "photos"}',
    f'--out={tmp_path / "found.html"}',
    *('--k=50', '--exclude_same_file', '--query'),
    *(photos / 'p0/x_00.png', photos / 'p1'),
  )
  code, _, err = commands.launch('search', *flags)
  assert code == 3 and 'torn.png' in err and '--skip_unreadable' in err
  assert not (tmp_path / 'found.html').exists()
  code, text, err = commands.launch('search', *flags, '--skip_unreadable')
  assert code == 0, err
  assert err.startswith('note: 1 file of ') and 'torn.png' in err
  rows = rows_of(text)
  assert [rank for rank, _, _ in rows] == [*range(1, 12)] * 4
  assert not [image for _, _, image in rows if 'same file' in image]
  assert 'fewer images than --k=50' in text
  assert f'--images={tmp_path / "photos"}' in text
  assert (tmp_path / 'found.html').read_text().count('<section') == 4


@pytest.mark.slow
def test_persons_are_cut_from_photographs(world, tmp_path):
  """White rectangles are the persons; one photograph has none."""
  pytest.importorskip('onnxruntime', reason='pip install .[detect]')
  pytest.importorskip('onnx', reason='pip install .[export]')
  import made_up_detectors

  workdir, _, _ = world
  for number, left in enumerate((8, 40, None)):
    pixels = np.full((64, 128, 3), 30, np.uint8)
    if left is not None:
      pixels[10:50, left : left + 20] = 255
    place = tmp_path / 'street' / f'{number}.png'
    place.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(place)
  model = made_up_detectors.bright(tmp_path / 'detector.onnx')
  flags = (
    f'--workdir={workdir}',
    f'--images={tmp_path / "street"}',
    f'--out={tmp_path / "v.npy"}',
    f'--detect={model}',
  )
  code, text, err = commands.launch('embed', *flags)
  assert code == 0, err
  assert err == 'note: no person in 1 photograph: 2.png\n'
  crops = tmp_path / 'v-crops'
  assert f'2 persons in 3 photographs, cut into {crops}' in text
  described = json.loads((tmp_path / 'v.json').read_text())
  assert described['images'] == str(crops)
  assert described['detected']['without_person'] == ['2.png']
  assert described['detected']['photographs'] == str(tmp_path / 'street')
  with Image.open(crops / '1.png-0.png') as image:
    np.testing.assert_allclose(image.size, (20, 40), atol=4)
  code, text, err = commands.launch(
    'search',
    f'--workdir={workdir}',
    f'--gallery={tmp_path / "v.npy"}',
    f'--query={crops / "1.png-0.png"}',
    f'--out={tmp_path / "found.html"}',
  )
  assert code == 0, err
  found = r'1\.png-0\.png \(1\.png at (\d+),(\d+),(\d+),(\d+), score 0\.9000\)'
  (box,) = re.findall(found, text)
  np.testing.assert_allclose([*map(int, box)], (40, 10, 60, 50), atol=3)
  assert '1.png at 4' in (tmp_path / 'found.html').read_text()
  # The crops are not replaced.
  code, _, err = commands.launch('embed', *flags)
  assert code == 2 and len(err.splitlines()) == 1 and 'not empty' in err


@pytest.mark.slow
def test_matches_are_compared_with_strangers(trained, tmp_path):
  """Those of the target, whose four persons are six pairs."""
  workdir = trained(tmp_path / 'run')
  for person in range(3):
    photo_trees.save(tmp_path / f'photos/{person}.png', person, 0)
  known = tmp_path / 'strangers.json'
  code, text, err = commands.launch(
    'evaluate', f'--workdir={workdir}', f'--strangers={known}'
  )
  assert code == 0, err
  line = '6 pairs of 4 persons of mall; a share below 1 of 7 cannot be told'
  assert f'strangers: {line}' in text
  flags = (
    f'--workdir={workdir}',
    f'--gallery={tmp_path / "photos"}',
    f'--query={tmp_path / "photos/1.png"}',
    f'--out={tmp_path / "found.html"}',
    f'--strangers={known}',
  )
  code, text, err = commands.launch('search', *flags)
  assert (code, err) == (0, '')
  assert f'strangers: {line}' in text and 'strangers as near' in text
  (nearest,) = re.findall(r'1 +\S+ +(\d of \d) +1\.png \(same', text)
  assert nearest == '1 of 7'
  assert 'strangers as near: 1 of 7' in (tmp_path / 'found.html').read_text()
  code, _, err = commands.launch('search', *flags, '--checkpoint=0')
  assert code == 4 and len(err.splitlines()) == 1 and 'other models' in err


@pytest.mark.slow
def test_few_images_have_no_approximate_index(world, tmp_path):
  pytest.importorskip('faiss', reason='pip install .[search]')
  workdir, photos, _ = world
  code, _, err = commands.launch(
    'search',
    f'--workdir={workdir}',
    f'--gallery={photos}',
    f'--query={photos / "p0/x_00.png"}',
    f'--out={tmp_path / "found.html"}',
    '--index=ivfpq',
  )
  assert code == 3 and len(err.splitlines()) == 1
  assert '12 vectors' in err and 'search them exactly' in err


@pytest.mark.slow
def test_vectors_of_another_checkpoint_are_refused(world, tmp_path):
  workdir, photos, _ = world
  flags = f'--workdir={workdir}', f'--out={tmp_path / "first.npy"}'
  code, text, err = commands.launch(
    'embed', *flags, f'--images={photos}', '--checkpoint=0'
  )
  assert code == 0, err
  assert '--checkpoint=0' in text.partition('next: ')[2]
  flags = (
    f'--workdir={workdir}',
    f'--gallery={tmp_path / "first.npy"}',
    f'--query={photos / "p0/x_00.png"}',
    f'--out={tmp_path / "found.html"}',
  )
  code, _, err = commands.launch('search', *flags)
  assert code == 4 and len(err.splitlines()) == 1, err
  assert 'another model (fedpav, global, round 0' in err
  code, _, err = commands.launch('search', *flags, '--checkpoint=0')
  assert (code, err) == (0, '')


@pytest.mark.slow
@pytest.mark.usefixtures('shallow')
def test_a_model_of_two_modalities_asks_for_them(tmp_path):
  fields = {
    'model.name': 'resnet18',
    'model.width': 0.0625,
    'model.modality_specific_stages': 1,
    'data.height': 32,
    'data.width': 16,
    'data.identities': 4,
    'data.target_identities': 4,
    'data.infrared': 2,
    'execution.devices': 1,
  }
  fr.train(fr.load_config('fedpav:smoke', fields, rounds=1), tmp_path / 'run')
  (tmp_path / 'photos').mkdir()
  rng = np.random.default_rng(0)
  for number in range(3):
    pixels = rng.integers(0, 256, (32, 16, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / f'photos/{number}.png')
  embed = (
    f'--workdir={tmp_path / "run"}',
    f'--images={tmp_path / "photos"}',
    f'--out={tmp_path / "v.npy"}',
  )
  code, _, err = commands.launch('embed', *embed)
  assert code == 2 and 'give --modality=visible|infrared' in err
  code, text, err = commands.launch('embed', *embed, '--modality=visible')
  assert (code, err) == (0, '')
  assert '--query_modality=MODALITY' in text
  assert json.loads((tmp_path / 'v.json').read_text())['modality'] == 0
  search = (
    f'--workdir={tmp_path / "run"}',
    f'--gallery={tmp_path / "v.npy"}',
    f'--query={tmp_path / "photos/1.png"}',
    f'--out={tmp_path / "found.html"}',
  )
  code, _, err = commands.launch('search', *search)
  assert code == 2 and 'give --query_modality=' in err
  code, _, err = commands.launch(
    'search', *search, '--query_modality=infrared', '--modality=infrared'
  )
  assert code == 2 and 'the vectors are of visible' in err
  near = {}
  for kind in ('visible', 'infrared'):
    code, text, err = commands.launch(
      'search', *search, f'--query_modality={kind}'
    )
    assert (code, err) == (0, '')
    near[kind] = {image[:5]: value for _, value, image in rows_of(text)}
  assert near['visible']['1.png'] < 0.01 < near['infrared']['1.png']


def refused(tmp_path, door, flags):
  """Returns (exit code, line) of a command that may write nothing."""
  places = {'dir': tmp_path, 'none': tmp_path / 'none', 'run': tmp_path / 'run'}
  for name in ('photos', 'empty', 'run'):
    places[name] = tmp_path / name
    places[name].mkdir()
  places['photo'] = tmp_path / 'photos' / 'a.png'
  Image.new('RGB', (4, 8)).save(places['photo'])
  given = [flag.format(**places) for flag in flags]
  if not any(flag.startswith('--out') for flag in given):
    name = {'embed': 'v.npy', 'search': 's.html'}[door]
    given.append(f'--out={tmp_path / name}')
  before = sorted(tmp_path.rglob('*'))
  status, _, err = commands.launch(door, *given)
  lines = err.strip().splitlines()
  assert len(lines) == 1, err
  assert sorted(tmp_path.rglob('*')) == before
  return status, lines[0]


@pytest.mark.parametrize(
  'door, flags, code, message',
  [
    ('embed', ['--workdir={run}'], 2, 'give --images'),
    (
      'search',
      ['--workdir={run}', '--gallery={empty}', '--query={photo}'],
      3,
      'no images',
    ),
  ],
)
def test_one_line_and_a_code(tmp_path, door, flags, code, message):
  status, line = refused(tmp_path, door, flags)
  assert status == code, line
  assert line.startswith(f'error[{code}]: ') and message in line


@pytest.mark.slow
@pytest.mark.parametrize(
  'door, flags, code, message',
  [
    ('embed', ['--images={photos}'], 2, 'give the --workdir'),
    (
      'search',
      [
        *('--workdir={run}', '--gallery={photos}', '--query={photo}'),
        *('--index=ivfpq', '--tracklets'),
      ],
      2,
      '--index is for images',
    ),
    ('embed', ['--workdir={run}', '--images={none}'], 3, 'does not exist'),
    ('embed', ['--workdir={run}', '--images={empty}'], 3, 'no images'),
    ('embed', ['--workdir={run}', '--images={photos}'], 4, 'config.json'),
    (
      'embed',
      ['--workdir={run}', '--images={photos}', '--out={none}/v.npy'],
      6,
      'cannot be written',
    ),
    ('search', ['--workdir={run}', '--query={photo}'], 2, 'give --gallery'),
    ('search', ['--workdir={run}', '--gallery={photos}'], 2, 'give --query'),
    (
      'search',
      ['--workdir={run}', '--gallery={none}', '--query={photo}'],
      3,
      'does not exist',
    ),
    (
      'search',
      ['--workdir={run}', '--gallery={photos}', '--query={none}'],
      3,
      'no such file',
    ),
    (
      'search',
      ['--workdir={run}', '--gallery={dir}/no.npy', '--query={photo}'],
      3,
      'no such file',
    ),
    (
      'search',
      ['--workdir={run}', '--gallery={photos}', '--query={photo}', '--k=0'],
      2,
      '--k=0',
    ),
    (
      'search',
      ['--workdir={run}', '--gallery={photos}', '--backend=x', '--query=y'],
      2,
      'unknown backend',
    ),
    (
      'search',
      ['--workdir={run}', '--gallery={photos}', '--index=x', '--query=y'],
      2,
      'unknown index',
    ),
    (
      'embed',
      ['--workdir={run}', '--images={photos}', '--detect={none}'],
      3,
      'no such file',
    ),
    (
      'embed',
      ['--workdir={run}', '--images={photos}', '--detect_score=0.2'],
      2,
      'give --detect=FILE.onnx',
    ),
    (
      'embed',
      ['--workdir={run}', '--images={photos}', '--every=2'],
      2,
      'no video in',
    ),
    (
      'embed',
      ['--workdir={run}', '--images={photo}'],
      3,
      'no folder and has no name of a video',
    ),
    (
      'embed',
      [
        *('--workdir={run}', '--images={photos}', '--detect=hog'),
        '--detect_class=1',
      ],
      2,
      'hog is none',
    ),
    (
      'search',
      [*('--workdir={run}', '--gallery={photos}', '--query=y'), '--out=v.npy'],
      2,
      '.html',
    ),
  ],
)
def test_more_lines_and_codes(tmp_path, door, flags, code, message):
  status, line = refused(tmp_path, door, flags)
  assert status == code, line
  assert line.startswith(f'error[{code}]: ') and message in line


def test_a_run_and_weights_are_two_models(tmp_path):
  code, _, err = commands.launch(
    'embed',
    '--weights=convnet-synthetic',
    f'--workdir={tmp_path}',
    f'--images={tmp_path}',
  )
  assert code == 2 and len(err.splitlines()) == 1
  assert 'two models' in err and '--weights' in err


@pytest.mark.slow
def test_weights_embed_and_search_without_a_run(world, tmp_path):
  _, photos, _ = world
  code, text, _ = commands.launch(
    'embed',
    '--weights=convnet-synthetic',
    f'--images={photos}',
    f'--out={tmp_path / "vectors.npy"}',
  )
  assert code == 0 and 'model: weights convnet-synthetic' in text
  paths = sorted(photos.rglob('*.png'))
  model = fr.load('weights:convnet-synthetic')
  vectors = np.load(tmp_path / 'vectors.npy')
  np.testing.assert_allclose(vectors, model.embed(paths), atol=1e-5)
  following = shlex.split(text.partition('next: ')[2])
  flags = [flag for flag in following[2:] if flag != '--query=IMAGE']
  code, text, err = commands.launch(
    'search', *flags, f'--query={paths[7]}', f'--out={tmp_path / "f.html"}'
  )
  assert (code, err) == (0, '')
  assert rows_of(text)[0] == (1, 0.0, 'p2/x_01.png (same file)')
