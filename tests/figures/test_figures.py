import sys
from pathlib import Path

import numpy as np
import pytest
import toy
import toy_run
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.algorithms.statistics import moments
from fedreid_jax.evaluation import evaluate_retrieval
from fedreid_jax.figures import (
  canvas,
  clouds,
  cmc,
  curves,
  distances,
  lists,
  persons,
  ranked,
  reconstructed,
  tsne,
)
from fedreid_jax.privacy import reconstruction


@pytest.fixture(scope='module')
def run():
  return toy_run.toy_run()


def entry(round_, target, model, **metrics):
  return {
    'round': round_,
    'target': target,
    'model': model,
    'metrics': metrics,
  }


RESULTS = {
  'evaluation': [
    entry(0, 'mall', 'global', mAP=10.0, rank1=20.0),
    entry(4, 'mall', 'global', mAP=30.0, rank1=40.0),
    entry(4, 'park', 'global', mAP=50.0, rank1=80.0),
    entry(4, 'park', 'client:a', mAP=99.0, rank1=99.0),
  ]
}


def written(figure, path: Path) -> np.ndarray:
  canvas.save(figure, path)
  assert [p.name for p in path.parent.iterdir()] == [path.name]
  with Image.open(path) as image:
    pixels = np.asarray(image.convert('RGB'))
  assert min(pixels.shape[:2]) > 200 and len(np.unique(pixels)) > 10
  return pixels


def test_missing_library_and_unknown_format(monkeypatch, tmp_path):
  with pytest.raises(errors.ConfigError, match='one of png, pdf, svg'):
    canvas.check(tmp_path / 'x.jpeg')
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  with pytest.raises(errors.ConfigError, match=r'fedreid_jax\[viz\]') as caught:
    canvas.check(tmp_path / 'x.png')
  assert '\n' not in caught.value.line()
  monkeypatch.setitem(sys.modules, 'sklearn', None)
  with pytest.raises(errors.ConfigError, match=r'fedreid_jax\[viz\]'):
    tsne.embed([], 0)


@pytest.mark.parametrize('kind', canvas.FORMATS)
def test_the_same_figure_is_the_same_file(kind, tmp_path):
  both = [tmp_path / f'{k}.{kind}' for k in range(2)]
  for path in both:
    canvas.save(curves.draw([('a', RESULTS)]), path)
  assert both[0].read_bytes() == both[1].read_bytes()


def test_labels_tell_runs_apart():
  config = toy.toy_config()
  config.name = 'dfh'
  other = config.copy_and_resolve_references()
  folders = [Path('x/one'), Path('x/two')]
  assert canvas.labels([config, other], folders) == ['dfh (one)', 'dfh (two)']
  other.seed = 3
  both = canvas.labels([config, other], folders)
  assert both == ['dfh, seed 0', 'dfh, seed 3']
  other.name = 'fedpav'
  assert canvas.labels([config, other], folders) == ['dfh', 'fedpav']


def test_curves(tmp_path):
  evaluation = RESULTS['evaluation']
  assert curves.over_rounds(evaluation, 'mAP') == {0: 10.0, 4: 40.0}
  assert curves.over_rounds(evaluation, 'accuracy') == {}
  own = curves.over_rounds(evaluation[3:], 'rank1')
  assert own == {4: 99.0}  # of clients, where the server keeps no model
  figure = curves.draw([('a', RESULTS), ('b', RESULTS)], 'mall')
  lines = figure.axes[0].get_lines()
  assert [list(line.get_ydata()) for line in lines] == [[10, 30]] * 2
  assert [axes.get_ylabel() for axes in figure.axes] == ['mAP, %', 'rank-1, %']
  written(figure, tmp_path / 'curves.png')
  with pytest.raises(errors.ConfigError, match='there are mall, park'):
    curves.draw([('a', RESULTS)], 'moon')
  with pytest.raises(errors.ConfigError, match='there are none'):
    curves.draw([('a', {'evaluation': []})])


def sides(run):
  """Features, identities and cameras of queries, then of the gallery."""
  own, trial = run.target('').images, run.target('').trials[0]
  found = run.ranked(own.images())
  return [
    (found[rows], own.identities[rows], own.cameras[rows])
    for rows in (trial.query, trial.gallery)
  ]


def test_match_curve(run, tmp_path):
  query, gallery = sides(run)
  columns = [x for pair in zip(query, gallery, strict=True) for x in pair]
  expected = evaluate_retrieval(*columns, ranks=(1, 7))
  found = cmc.curve(run)
  assert found[0] == expected['rank1'] and found[6] == expected['rank7']
  assert len(found) == 20 and (np.diff(found) >= 0).all()
  written(cmc.draw([('a', run), ('b', run)]), tmp_path / 'cmc.png')


def pairs(run):
  """(distance, query, gallery image, same person) a query may see."""
  query, gallery = sides(run)
  for q, (f, person, camera) in enumerate(zip(*query, strict=True)):
    for g, (h, other, place) in enumerate(zip(*gallery, strict=True)):
      if person != other or camera != place:
        yield float(np.linalg.norm(f - h)), q, g, person == other


def test_distances_are_those_of_visible_pairs(run, tmp_path):
  answered = {q for _, q, _, same in pairs(run) if same}
  expected = [
    [d for d, q, _, same in pairs(run) if same == kind and q in answered]
    for kind in (True, False)
  ]
  found = distances.split(run)
  for kind, values in zip(found, expected, strict=True):
    np.testing.assert_allclose(np.sort(kind), np.sort(values), atol=2e-4)
  written(distances.draw([('a', run)]), tmp_path / 'distances.png')


def test_lists_leave_out_the_same_camera(run):
  num_queries = len(run.target('').trials[0].query)
  found = lists.draw(run, '', 99, 0)
  assert 0 < len(found) <= num_queries
  for one in found:
    mine = sorted((d, g) for d, q, g, _ in pairs(run) if q == one.query)
    nearest = [g + num_queries for _, g in mine]
    assert list(one.gallery) == nearest  # the gallery is the later rows
    people = run.target('').images.identities
    np.testing.assert_array_equal(
      one.right, people[one.gallery] == people[one.query]
    )
  few = lists.draw(run, '', 3, 5)
  assert [r.query for r in few] == sorted({r.query for r in few})
  assert [r.query for r in few] == [r.query for r in lists.draw(run, '', 3, 5)]


def test_ranked_sheet(run, tmp_path):
  figure = ranked.draw(run, 'toy', num=2)
  assert len(figure.axes) == 2 * 11
  photos = [axes.get_images()[0].get_array() for axes in figure.axes]
  assert all(photo.shape == toy.IMAGE_SHAPE[:2] for photo in photos)
  one = lists.draw(run, '', 2, 0)[0]
  for axes, right in zip(figure.axes[1:11], one.right, strict=False):
    colour = axes.spines['left'].get_edgecolor()[:3]
    wanted = canvas.RIGHT if right else canvas.WRONG
    np.testing.assert_allclose(
      np.multiply(colour, 255), [int(wanted[k : k + 2], 16) for k in (1, 3, 5)]
    )
  written(figure, tmp_path / 'ranked.png')


def test_clouds_of_every_domain(run):
  found = clouds.real(run, 0)
  names = ['ash', 'birch', 'cedar', 'dogwood', 'target']
  assert [cloud.domain for cloud in found] == names
  assert [len(cloud.features) for cloud in found] == [9, 14, 5, 11, 24]


def test_statistics_come_from_the_server_or_the_images(run):
  client = run.client('birch')
  features = run.features(client.images(), 'feature')
  means = np.stack([features[client.labels == k].mean(0) for k in range(3)])
  found = clouds.statistics(run)
  assert found.shape == (4, 4, 8)
  np.testing.assert_allclose(found[1, 0], means.mean(0), atol=1e-5)
  np.testing.assert_allclose(found[1, 1], means.var(0), atol=1e-5)
  kept = np.ones((4, 4, 8), np.float32)
  np.testing.assert_array_equal(
    clouds.statistics(run._replace(states={'dfh': kept})), kept
  )
  other = clouds.statistics(run._replace(states={'dfh': kept[:3]}))
  np.testing.assert_array_equal(other, found)
  assert isinstance(run.moments(client), moments.Moments)


def test_hallucinated_features_have_the_statistics(run):
  """Without spread a domain's features are its mean plus normalised ones."""
  dfs = np.zeros((4, 4, 8), np.float32)
  dfs[:, 0] = np.arange(4)[:, None]
  dfs[:, 2] = 1
  found = clouds.hallucinated(run._replace(states={'dfh': dfs}), 0)
  assert [c.domain for c in found] == [
    'birch',
    'cedar',
    'dogwood',
    'a new domain',
  ]
  own = run.features(run.client('ash').images(), 'feature')
  b = (own - own.mean(0)) / np.sqrt(own.var(0) + 1e-5)
  for mean, cloud in enumerate(found[:3], 1):
    np.testing.assert_allclose(cloud.features, mean + b, atol=1e-5)
  shift = found[3].features - b
  assert (shift > 0).all() and (shift < 3).all()
  run.config.dfh.novel = 'none'
  assert len(clouds.hallucinated(run, 0)) == 3
  run.config.dfh.novel = 'dirichlet'


@pytest.mark.parametrize('components', [('fedpav',), ('fedpav', 'dfh')])
def test_features_in_the_plane(components, tmp_path):
  own = toy_run.toy_run(components, infrared=True)
  pixels = written(tsne.draw(own, 'toy'), tmp_path / 'tsne.png')
  assert (pixels.shape[1] > 900) == ('dfh' in components)
  again = written(tsne.draw(own, 'toy'), tmp_path / 'tsne.png')
  np.testing.assert_array_equal(pixels, again)


def test_reconstructed_sheet(run, tmp_path):
  client = run.client('birch')
  photos = client.images()[:3]
  found = reconstruction.Reconstructed(np.arange(3), photos, photos, {})
  verdict = reconstruction.judge(found, client, run)
  figure = reconstructed.draw(found, verdict, client, 'title')
  assert len(figure.axes) == 2 * 10  # two rows of two, the last place empty
  assert sum(bool(axes.get_images()) for axes in figure.axes) == 15
  written(figure, tmp_path / 'reconstructed.png')


@pytest.mark.parametrize('picture', ['ranked', 'tsne'])
def test_a_picture_says_which_images_are_infrared(picture):
  infrared, told = toy_run.toy_run(infrared=True), []

  def recording(**kind):
    extract = infrared.extractor(**kind)

    def call(variables, images, modalities=None):
      told.append(modalities)
      return extract(variables, images, modalities)

    return call

  run = infrared._replace(extractor=recording)
  if picture == 'ranked':
    lists.draw(run, '', 2, 0)
  else:
    clouds.real(run, 0)
  assert told and all(kinds is not None for kinds in told)


def test_persons_are_the_same_whatever_the_run(tmp_path):
  own = toy_run.toy_run(infrared=True)
  images = own.target('').images
  found = persons.of(own, seed=1)
  assert [c.domain for c in found] == [f'person {k}' for k in range(5)]
  assert sum(len(c.modalities) for c in found) == len(images.identities)
  features = own.ranked(images.images(), images.modalities)
  np.testing.assert_allclose(
    found[2].features, features[images.identities == 2], atol=1e-6
  )
  picture = persons.draw([('a', own), ('b', own)], seed=1)
  pixels = written(picture, tmp_path / 'persons.png')
  assert len(picture.axes) == 2 and pixels.shape[1] > 700
