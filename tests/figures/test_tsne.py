import numpy as np
import pytest
import toy
import toy_run
from drawn import written
from matplotlib import colors

from fedreid_jax.figures import tsne


def test_three_identities_of_every_client(run):
  found = tsne.real(run, 0)
  assert [c.name for c in found] == ['ash', 'birch', 'cedar', 'dogwood']
  client = run.client('birch')
  rows, kinds = tsne.chosen(client, 0)
  assert set(kinds) == {0, 1, 2}
  persons = [np.unique(client.labels[rows[kinds == k]]) for k in range(3)]
  assert sorted(int(p) for (p,) in persons) == [0, 1, 2]
  features = run.features(client.images()[rows], 'feature')
  np.testing.assert_allclose(found[1].features, features, atol=1e-6)
  np.testing.assert_array_equal(found[1].kinds, kinds)
  again, _ = tsne.chosen(client, 0)
  np.testing.assert_array_equal(rows, again)


def test_identities_and_images_are_drawn_by_the_seed():
  labels = np.repeat(np.arange(9, dtype=np.int32), 40)
  client = toy.toy_client('ash', 9)._replace(labels=labels)
  drawn = [set(labels[tsne.chosen(client, seed)[0]]) for seed in range(8)]
  assert all(len(persons) == 3 for persons in drawn)
  assert len(set.union(*drawn)) == 9
  rows, kinds = tsne.chosen(client, 0)
  assert list(np.bincount(kinds)) == [24, 24, 24]
  assert len(set(rows)) == 72
  few = client._replace(labels=np.zeros(9, np.int32))
  assert set(tsne.chosen(few, 0)[1]) == {0}


def without_novel(run):
  return run._replace(config=toy.replaced(run.config, {'dfh.novel': 'none'}))


def test_hallucinated_features_have_the_statistics(run):
  """Without spread a domain's features are its mean plus normalised ones."""
  dfs = np.zeros((4, 4, 8), np.float32)
  dfs[:, 0] = np.arange(4)[:, None]
  dfs[:, 2] = 1
  run = run._replace(states={'dfh': dfs})
  client = run.client('birch')
  rows, kinds = tsne.chosen(client, 0)
  every = run.features(client.images(), 'feature')  # fewer than a batch
  b = ((every - every.mean(0)) / np.sqrt(every.var(0) + 1e-5))[rows]
  (novel,) = tsne.hallucinated(run, 'birch', 0)
  assert novel.name == 'novel domain'
  np.testing.assert_array_equal(novel.kinds, kinds)
  shift = novel.features - b
  np.testing.assert_allclose(shift, shift[0, 0] + 0 * shift, atol=1e-5)
  assert 0 < shift[0, 0] < 3
  run = without_novel(run)
  found = tsne.hallucinated(run, 'birch', 0)
  assert [c.name for c in found] == ['ash', 'cedar', 'dogwood']
  for mean, cloud in zip((0, 2, 3), found, strict=True):
    np.testing.assert_allclose(cloud.features, mean + b, atol=1e-5)


@pytest.mark.parametrize('novel', ['dirichlet', 'dirichlet_mixup'])
def test_one_draw_keeps_the_differences_between_images(run, novel):
  """All images have one map, so differences have one factor per channel."""
  config = toy.replaced(
    run.config, {'dfh.novel': novel, 'dfh.mix_own': 'hallucinated'}
  )
  run = run._replace(config=config)
  (cloud,) = tsne.hallucinated(run, '', 3)
  rows, _ = tsne.chosen(run.client(''), 3)
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
  (other,) = tsne.hallucinated(run, '', 4)
  assert not np.allclose(cloud.features.mean(0), other.features.mean(0))


def drawn_points(axes):
  """(places, face, edge, number of the marker's corners) of every cloud."""
  return [
    (c.get_offsets(), c.get_facecolor(), c.get_edgecolor(), c.get_paths()[0])
    for c in axes.collections
  ]


@pytest.mark.slow
def test_figure_six_of_three_methods(tmp_path):
  """One command's picture: panels, markers of identities, domains in grey."""
  runs = [
    ('a', toy_run.toy_run()),
    ('b', toy_run.toy_run()),
    ('c', toy_run.toy_run(('fedpav',))),
  ]
  mixed = toy.replaced(runs[1][1].config, {'dfh.novel': 'feature_mixup'})
  runs[1] = 'b', runs[1][1]._replace(config=mixed)
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
  real = sum(len(c.features) for c in tsne.real(runs[0][1], 1))
  made = len(tsne.chosen(runs[0][1].client('birch'), 1)[0])
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
  assert len(set(tsne.MARKERS)) == tsne.IDENTITIES


def test_features_of_known_domains_without_a_novel_one(run):
  own = without_novel(run)
  figure = tsne.draw([('a', own)], 'ash')
  assert figure.axes[0].get_title() == 'a: FH'
  names = [text.get_text() for text in figure.legends[0].get_texts()]
  assert names[4:7] == [
    f'{name}, hallucinated from ash' for name in ('birch', 'cedar', 'dogwood')
  ]


def test_persons_are_the_same_whatever_the_run(tmp_path):
  own = toy_run.toy_run(infrared=True)
  images = own.target('').images
  found = tsne.persons(own, seed=1)
  assert [c.name for c in found] == [f'person {k}' for k in range(5)]
  assert sum(len(c.kinds) for c in found) == len(images.identities)
  features = own.ranked(images.images(), images.modalities)
  np.testing.assert_allclose(
    found[2].features, features[images.identities == 2], atol=1e-6
  )
  picture = tsne.draw_persons([('a', own), ('b', own)], seed=1)
  pixels = written(picture, tmp_path / 'persons.png')
  assert len(picture.axes) == 2 and pixels.shape[1] > 700
