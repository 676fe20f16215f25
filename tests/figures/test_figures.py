import sys
from pathlib import Path

import numpy as np
import pytest
import toy
import toy_run
from matplotlib import colors
from PIL import Image

from fedreid_jax import errors
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
from fedreid_jax.privacy import attacks, judge
from fedreid_jax.privacy.reconstruction import Reconstructed


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


def test_runs_of_one_label_are_a_line_with_a_band():
  """At round 4 the runs have 30 and 34: mean 32, sample deviation sqrt 8."""
  other = {'evaluation': [entry(4, 'mall', 'global', mAP=34.0)]}
  figure = curves.draw([('a', RESULTS), ('b', other), ('a', other)], 'mall')
  first, second = figure.axes[0].get_lines()
  assert (list(first.get_xdata()), list(first.get_ydata())) == ([4], [32.0])
  assert list(second.get_ydata()) == [34.0]
  assert first.get_linestyle() != second.get_linestyle()
  band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
  assert band.max() == pytest.approx(32 + 8**0.5)
  assert band.min() == pytest.approx(32 - 8**0.5)
  assert '± sample standard deviation of 2 runs' in figure.get_suptitle()


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


def test_images_are_captioned_by_cameras_if_there_are_any():
  found = ranked.captions(np.array([1, 0, 1]))
  assert found == ['camera 1', 'camera 0', 'camera 1']
  assert ranked.captions(np.arange(3)) == ['', '', '']


def test_three_identities_of_every_client(run):
  found = clouds.real(run, 0)
  assert [c.name for c in found] == ['ash', 'birch', 'cedar', 'dogwood']
  client = run.client('birch')
  rows, kinds = clouds.chosen(client, 0)
  assert set(kinds) == {0, 1, 2}
  persons = [np.unique(client.labels[rows[kinds == k]]) for k in range(3)]
  assert sorted(int(p) for (p,) in persons) == [0, 1, 2]
  features = run.features(client.images()[rows], 'feature')
  np.testing.assert_allclose(found[1].features, features, atol=1e-6)
  np.testing.assert_array_equal(found[1].kinds, kinds)
  again, _ = clouds.chosen(client, 0)
  np.testing.assert_array_equal(rows, again)


def test_identities_and_images_are_drawn_by_the_seed(monkeypatch):
  labels = np.repeat(np.arange(9, dtype=np.int32), 40)
  client = toy.toy_client('ash', 9)._replace(labels=labels)
  drawn = [set(labels[clouds.chosen(client, seed)[0]]) for seed in range(8)]
  assert all(len(persons) == 3 for persons in drawn)
  assert len(set.union(*drawn)) == 9
  rows, kinds = clouds.chosen(client, 0)
  assert list(np.bincount(kinds)) == [24, 24, 24]
  assert len(set(rows)) == 72
  few = client._replace(labels=np.zeros(9, np.int32))
  assert set(clouds.chosen(few, 0)[1]) == {0}


def test_hallucinated_features_have_the_statistics(run):
  """Without spread a domain's features are its mean plus normalised ones."""
  dfs = np.zeros((4, 4, 8), np.float32)
  dfs[:, 0] = np.arange(4)[:, None]
  dfs[:, 2] = 1
  run = run._replace(
    states={'dfh': dfs}, config=run.config.copy_and_resolve_references()
  )
  client = run.client('birch')
  rows, kinds = clouds.chosen(client, 0)
  every = run.features(client.images(), 'feature')  # fewer than a batch
  b = ((every - every.mean(0)) / np.sqrt(every.var(0) + 1e-5))[rows]
  (novel,) = clouds.hallucinated(run, 'birch', 0)
  assert novel.name == 'novel domain'
  np.testing.assert_array_equal(novel.kinds, kinds)
  shift = novel.features - b
  np.testing.assert_allclose(shift, shift[0, 0] + 0 * shift, atol=1e-5)
  assert 0 < shift[0, 0] < 3
  run.config.dfh.novel = 'none'
  found = clouds.hallucinated(run, 'birch', 0)
  assert [c.name for c in found] == ['ash', 'cedar', 'dogwood']
  for mean, cloud in zip((0, 2, 3), found, strict=True):
    np.testing.assert_allclose(cloud.features, mean + b, atol=1e-5)


@pytest.mark.parametrize('novel', ['dirichlet', 'dirichlet_mixup'])
def test_one_draw_keeps_the_differences_between_images(run, novel):
  """All images have one map, so differences have one factor per channel."""
  config = run.config.copy_and_resolve_references()
  config.dfh.novel, config.dfh.mix_own = novel, 'hallucinated'
  run = run._replace(config=config)
  (cloud,) = clouds.hallucinated(run, '', 3)
  rows, _ = clouds.chosen(run.client(''), 3)
  own = run.features(run.client('').images()[rows], 'feature')
  before, after = own - own[:1], cloud.features - cloud.features[:1]
  largest = abs(before).argmax(0)[None]
  top, bottom = (np.take_along_axis(x, largest, 0)[0] for x in (after, before))
  alive = abs(bottom) > 1e-3
  factor = top[alive] / bottom[alive]
  assert alive.sum() > 2 and (factor > 0).all() and np.ptp(factor) > 0.1
  np.testing.assert_allclose(
    after[:, alive], factor * before[:, alive], atol=1e-4
  )
  (other,) = clouds.hallucinated(run, '', 4)
  assert not np.allclose(cloud.features.mean(0), other.features.mean(0))


def drawn_points(axes):
  """(places, face, edge, number of the marker's corners) of every cloud."""
  return [
    (c.get_offsets(), c.get_facecolor(), c.get_edgecolor(), c.get_paths()[0])
    for c in axes.collections
  ]


def test_figure_six_of_three_methods(tmp_path):
  """One command's picture: panels, markers of identities, domains in grey."""
  runs = [
    ('a', toy_run.toy_run()),
    ('b', toy_run.toy_run()),
    ('c', toy_run.toy_run(('fedpav',))),
  ]
  runs[1][1].config.dfh.novel = 'feature_mixup'
  figure = tsne.draw(runs, 'birch', 1)
  pixels = written(figure, tmp_path / 'tsne.png')
  assert pixels.shape[1] > 1800
  titles = [axes.get_title() for axes in figure.axes]
  assert titles == ['a: DFH', 'b: FH + Feature-MixUp', 'c']
  names = [text.get_text() for text in figure.legends[0].get_texts()]
  assert names == [
    *('ash', 'birch', 'cedar', 'dogwood'),
    'novel domain, hallucinated from birch',
    *(f'identity {k + 1} of a domain' for k in range(3)),
  ]
  points = [drawn_points(axes) for axes in figure.axes]
  real = sum(len(c.features) for c in clouds.real(runs[0][1], 1))
  made = len(clouds.chosen(runs[0][1].client('birch'), 1)[0])
  # The first panel also has the empty clouds of the legend.
  shown = [sum(len(p[0]) for p in panel if p[0].size) for panel in points]
  assert shown == [real + made, real + made, real]
  again = tsne.draw(runs, 'birch', 1)
  np.testing.assert_array_equal(pixels, written(again, tmp_path / 'tsne.png'))


def test_three_domains_are_distinct_without_colour():
  styles = list(tsne.styles(['a', 'b', 'c']).values())
  assert [s.face == 'none' for s in styles] == [False, False, True]
  dark, light = (
    np.dot(colors.to_rgb(s.face), [0.299, 0.587, 0.114]) for s in styles[:2]
  )
  assert 0.2 < dark < light - 0.2  # black is for novel domains
  many = tsne.styles([str(k) for k in range(14)]).values()
  assert len({(s.face, s.edge) for s in many}) == 14
  assert len(set(tsne.MARKERS)) == clouds.IDENTITIES


def test_features_of_known_domains_without_a_novel_one(run):
  own = run._replace(config=run.config.copy_and_resolve_references())
  own.config.dfh.novel = 'none'
  figure = tsne.draw([('a', own)], 'ash')
  assert figure.axes[0].get_title() == 'a: FH'
  names = [text.get_text() for text in figure.legends[0].get_texts()]
  assert names[4:7] == [
    f'{name}, hallucinated from ash' for name in ('birch', 'cedar', 'dogwood')
  ]


def attempt(photos, clients, labels=None):
  images = Reconstructed(photos, photos, {})
  return attacks.Attempt(images, np.asarray(clients), labels)


def colour(axes):
  return colors.to_hex(axes.spines['left'].get_edgecolor()).upper()


def test_reconstructed_sheet_of_identities(run, tmp_path):
  photos = run.client('birch').images()
  made = {'identity means': attempt(photos[:3], [1] * 3, np.arange(3))}
  answers = judge.judge(made, run, run)
  figure = reconstructed.draw(made, answers, run, 'title')
  assert len(figure.axes) == 2 * 8  # two rows of two, the last place empty
  assert sum(bool(axes.get_images()) for axes in figure.axes) == 12
  captions = [axes.get_xlabel() for axes in figure.axes]
  assert captions[:3] == ['birch 0'] * 3 and captions[4:7] == ['birch 1'] * 3
  assert colour(figure.axes[2]) == canvas.RIGHT
  np.testing.assert_array_equal(
    figure.axes[1].get_images()[0].get_array(), photos[0, :, :, 0]
  )
  written(figure, tmp_path / 'reconstructed.png')


def test_reconstructed_sheet_of_statistics(run, tmp_path):
  birch, ash = run.client('birch'), run.client('ash')
  both = np.concatenate([birch.images()[:1], ash.images()[:1]])
  made = {
    'DFS': attempt(both, [1, 0]),
    'permuted DFS': attempt(both[::-1], [1, 0]),
    'real feature': attempt(both[:1], [1], np.arange(1)),
  }
  answers = judge.judge(made, run, run)
  figure = reconstructed.draw(made, answers, run, 'title')
  rows = np.asarray(figure.axes).reshape(2, 10)
  captions = [[axes.get_xlabel() for axes in row] for row in rows]
  assert captions[0][:2] == ['birch', 'birch']
  assert captions[0][3:5] == ['birch', 'ash']
  assert captions[1][3:5] == ['ash', 'birch']
  assert captions[0][6:9] == ['birch 0'] * 3
  frames = [colour(rows[0, place]) for place in (1, 4, 8)]
  assert frames == [canvas.RIGHT, canvas.WRONG, canvas.RIGHT]
  assert not any(axes.get_images() for axes in rows[1, 6:])
  written(figure, tmp_path / 'reconstructed.png')


def test_a_sheet_shows_all_clients(run):
  """Of more images than there are rows, some of every client."""
  photos = np.repeat(run.client('birch').images()[:1], 40, axis=0)
  owners = np.repeat(np.arange(4), 10)
  made = {
    'DFS': attempt(photos, owners),
    'real feature': attempt(photos[:1], [1], np.arange(1)),
  }
  answers = judge.judge(made, run, run)
  figure = reconstructed.draw(made, answers, run, 'title')
  rows = np.asarray(figure.axes).reshape(8, 7)
  shown = [row[0].get_xlabel() for row in rows]
  assert shown == [
    n for n in ('ash', 'birch', 'cedar', 'dogwood') for _ in 'ab'
  ]


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
  assert [c.name for c in found] == [f'person {k}' for k in range(5)]
  assert sum(len(c.kinds) for c in found) == len(images.identities)
  features = own.ranked(images.images(), images.modalities)
  np.testing.assert_allclose(
    found[2].features, features[images.identities == 2], atol=1e-6
  )
  picture = persons.draw([('a', own), ('b', own)], seed=1)
  pixels = written(picture, tmp_path / 'persons.png')
  assert len(picture.axes) == 2 and pixels.shape[1] > 700
