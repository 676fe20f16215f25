"""Models of a run and their embeddings."""

import shutil

import numpy as np
import pytest
import toy
import toy_run
from PIL import Image

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.config import validation
from fedreid_jax.data import load
from fedreid_jax.models import resnet
from fedreid_jax.training import build, snapshot

TINY = {
  'model.features': (4, 8),
  'data.identities': 4,
  'data.target_identities': 4,
  'evaluation.batch': 16,
  'execution.devices': 1,
}


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run of one round, whose evaluation mirrors images."""
  folder = tmp_path_factory.mktemp('run')
  fields = TINY | {'evaluation.flip': True, 'evaluation.feature': 'feature'}
  fr.train(fr.load_config('fedpav:smoke', fields, rounds=1), folder)
  return folder


def target_of(config):
  return load.load(config.data).targets[0].images


@pytest.mark.slow
def test_attributes(workdir):
  first, last = fr.load(workdir, 0), fr.load(workdir)
  assert (first.step, last.step, last.name) == (0, 1, 'global')
  assert last.config.rounds == 1
  kernel = 'params/classifier/kernel'
  assert kernel in last.variables
  differ = [
    name
    for name, value in last.variables.items()
    if not np.array_equal(value, first.variables[name])
  ]
  assert differ


@pytest.mark.slow
def test_embeddings_are_those_of_the_evaluation(workdir, tmp_path):
  _, ranked = toy_run.ranked(workdir)
  model = fr.load(workdir)
  pixels = target_of(model.config).images()
  found = model.embed(pixels)
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, ranked)
  paths = []
  for number, image in enumerate(pixels):
    paths.append(tmp_path / f'{number}.png')
    Image.fromarray(image).save(paths[-1])
  np.testing.assert_array_equal(model.embed(paths), found)
  np.testing.assert_array_equal(model.embed([str(p) for p in paths]), found)
  np.testing.assert_allclose(model.embed(paths, batch=7), found, atol=1e-5)


def test_files_are_embedded_batch_by_batch(workdir, tmp_path):
  model = fr.load(workdir)
  paths = []
  for number, image in enumerate(target_of(model.config).images()[:7]):
    paths.append(str(tmp_path / f'{number}.png'))
    Image.fromarray(image).save(paths[-1])
  expected = model.embed(paths, batch=3)
  parts = [*model.embed_files(paths, batch=3)]
  assert [rows.tolist() for rows, _ in parts] == [[0, 1, 2], [3, 4, 5], [6]]
  found = np.concatenate([vectors for _, vectors in parts])
  np.testing.assert_array_equal(found, expected)
  (tmp_path / '3.png').write_bytes(b'')
  (tmp_path / '6.png').unlink()
  skipped = []
  parts = model.embed_files(paths, batch=3, skip=lambda *x: skipped.append(x))
  rows, vectors = (np.concatenate(side) for side in zip(*parts, strict=True))
  assert rows.tolist() == [0, 1, 2, 4, 5]
  np.testing.assert_array_equal(vectors, expected[rows])
  assert skipped == [(3, 'empty file'), (6, 'No such file or directory')]


def test_a_digest_belongs_to_a_model(workdir, tmp_path):
  first, last = fr.load(workdir, 0), fr.load(workdir)
  assert first.digest != last.digest and len(last.digest) == 64
  shutil.copytree(workdir, tmp_path / 'copy')
  assert fr.load(tmp_path / 'copy').digest == last.digest
  leaves = {'a': np.arange(3.0), 'b': np.ones((2, 2))}
  config, before = last.config, snapshot.digest_of(last.config, leaves)
  assert snapshot.digest_of(config, dict(reversed(leaves.items()))) == before
  for other in ({'a': leaves['a'] + 1}, {'b': np.ones(4)}, {'c': np.ones(1)}):
    assert snapshot.digest_of(config, leaves | other) != before
  for group, field, value in (
    ('evaluation', 'flip', False),
    ('evaluation', 'feature', 'embedding'),
    ('model', 'last_stride', 3 - config.model.last_stride),
  ):
    changed = toy.replaced(config, {f'{group}.{field}': value})
    assert snapshot.digest_of(changed, leaves) != before
  changed = toy.replaced(config, {'rounds': 7, 'evaluation.batch': 3})
  assert snapshot.digest_of(changed, leaves) == before


def test_no_image_of_the_run_is_read(workdir, monkeypatch):
  monkeypatch.setattr(
    load, 'load', lambda *_, **__: pytest.fail('images are read')
  )
  monkeypatch.setattr(
    build.load, 'load', lambda *_, **__: pytest.fail('likewise')
  )
  assert fr.load(workdir).embed(np.zeros((1, 32, 16, 3), np.uint8)).shape[1]


def test_files_of_other_sizes_are_resized(workdir, tmp_path):
  model = fr.load(workdir)
  large = Image.fromarray(np.full((90, 50), 77, np.uint8))
  large.save(tmp_path / 'grey.png')
  same = np.full((1, 32, 16, 3), 77, np.uint8)
  np.testing.assert_array_equal(
    model.embed([tmp_path / 'grey.png']), model.embed(same)
  )


def test_grey_and_inverted_files(tmp_path):
  fields = {
    'data.channels': 'grey',
    'data.mean': (0.0,),
    'data.std': (1.0,),
    'data.invert': True,
  }
  config = validation.validate(fr.load_config('fedpav:smoke', TINY | fields))
  pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 16, 1), np.uint8)
  paths = []
  for number, image in enumerate(pixels):
    paths.append(tmp_path / f'{number}.png')
    Image.fromarray(255 - image[:, :, 0]).save(paths[-1])

  def extractor(batch):
    return lambda variables, images, modalities: images.reshape(len(images), -1)

  model = snapshot.Snapshot(config, {}, 0, 'global', extractor)
  np.testing.assert_array_equal(model.embed(paths), model.embed(pixels))


def test_modalities_belong_to_their_images(workdir, tmp_path):
  def extractor(batch):
    return lambda variables, images, modalities: modalities[:, None] * 1.0

  config = fr.load(workdir).config
  model = snapshot.Snapshot(config, {}, 0, 'global', extractor)
  Image.new('RGB', (16, 32)).save(tmp_path / 'black.png')
  paths = [tmp_path / 'black.png'] * 5
  kinds = [0, 1, 1, 0, 1]
  for batch in (2, 8):
    assert model.embed(paths, kinds, batch).ravel().tolist() == kinds
    assert not model.embed(paths, batch=batch).any()


@pytest.mark.slow
def test_modalities_reach_the_network(tmp_path, monkeypatch):
  monkeypatch.setitem(resnet.DEPTHS, 'resnet18', (False, (1,)))
  fields = TINY | {
    'data.infrared': 2,
    'model.name': 'resnet18',
    'model.width': 0.0625,
    'model.modality_specific_stages': 1,
  }
  config = fr.load_config('fedpav:smoke', fields, rounds=1)
  fr.train(config, tmp_path)
  model = fr.load(tmp_path)
  pixels = target_of(model.config).images()[:4]
  visible, infrared, mixed = (
    model.embed(pixels, modalities)
    for modalities in (None, [1] * 4, [0, 1, 1, 0])
  )
  assert model.has_modalities
  assert not np.allclose(visible, infrared)
  np.testing.assert_array_equal(mixed[[0, 3]], visible[[0, 3]])
  np.testing.assert_array_equal(mixed[[1, 2]], infrared[[1, 2]])


@pytest.mark.parametrize(
  ('images', 'options'),
  [
    ([], {}),
    ('a.jpg', {}),
    (['absent.jpg'], {}),
    (np.zeros((1, 32, 16, 3), np.float32), {}),
    (np.zeros((1, 16, 32, 3), np.uint8), {}),
    (np.zeros((32, 16, 3), np.uint8), {}),
    (np.zeros((2, 32, 16, 3), np.uint8), {'modalities': [0]}),
    (np.zeros((1, 32, 16, 3), np.uint8), {'modalities': [2]}),
  ],
)
def test_errors_of_embed(workdir, images, options):
  with pytest.raises(errors.DataError):
    fr.load(workdir).embed(images, **options)


def test_a_damaged_file_is_named(workdir, tmp_path):
  path = tmp_path / 'torn.png'
  path.write_bytes(b'\x89PNG')
  with pytest.raises(errors.DataError, match='torn.png'):
    fr.load(workdir).embed([path])


def test_errors_of_load(workdir, tmp_path):
  with pytest.raises(errors.ConfigError, match="no model 'client:x'"):
    fr.load(workdir, model='client:x')
  with pytest.raises(errors.IntegrityError, match='no checkpoint 7'):
    fr.load(workdir, checkpoint=7)
  with pytest.raises(errors.IntegrityError, match='config.json'):
    fr.load(tmp_path)


def test_evaluate_with_other_fields(workdir):
  (entry,) = fr.evaluate(workdir, {'evaluation.metric': 'cosine'})
  assert entry['distance'] == 'cosine' and entry['round'] == 1
  with pytest.raises(errors.ConfigError, match='unknown field'):
    fr.evaluate(workdir, {'evaluation.metrics': 'cosine'})
