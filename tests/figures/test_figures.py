import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import toy
import toy_run
from drawn import written

from fedreid_jax import errors
from fedreid_jax.evaluation.evaluators.retrieval import evaluate_retrieval
from fedreid_jax.figures import canvas, curves, overlay, retrieval, tsne, why


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
  config = toy.replaced(toy.toy_config(), {'name': 'dfh'})
  other = config
  folders = [Path('x/one'), Path('x/two')]
  assert canvas.labels([config, other], folders) == ['dfh (one)', 'dfh (two)']
  other = replace(other, seed=3)
  both = canvas.labels([config, other], folders)
  assert both == ['dfh, seed 0', 'dfh, seed 3']
  other = replace(other, name='fedpav')
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
  other = {'evaluation': [entry(0, 'mall', 'global', score=1.0)]}
  assert not curves.has_lines(other['evaluation'])
  with pytest.raises(errors.ConfigError, match='no metric with a curve'):
    curves.draw([('a', other)])


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


def test_targets_apart_have_a_row_of_panels():
  figure = curves.draw([('a', RESULTS)], apart=True)
  names = [axes.get_ylabel() for axes in figure.axes]
  assert names[::2] == ['mAP on mall, %', 'mAP on park, %']
  own = [list(axes.get_lines()[0].get_ydata()) for axes in figure.axes[::2]]
  assert own == [[10, 30], [50]]
  assert figure.get_suptitle() == 'Test on 2 targets'


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
  found = retrieval.match_rates(run)
  assert found[0] == expected['rank1'] and found[6] == expected['rank7']
  assert len(found) == 20 and (np.diff(found) >= 0).all()
  written(
    retrieval.draw_match_curves([('a', run), ('b', run)]), tmp_path / 'cmc.png'
  )


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
  found = retrieval.distances_of_pairs(run)
  for kind, values in zip(found, expected, strict=True):
    np.testing.assert_allclose(np.sort(kind), np.sort(values), atol=2e-4)
  written(retrieval.draw_distances([('a', run)]), tmp_path / 'distances.png')


def test_lists_leave_out_the_same_camera(run):
  num_queries = len(run.target('').trials[0].query)
  found = retrieval.rank(run, '', 99, 0)
  assert 0 < len(found) <= num_queries
  for one in found:
    mine = sorted((d, g) for d, q, g, _ in pairs(run) if q == one.query)
    nearest = [g + num_queries for _, g in mine]
    assert list(one.gallery) == nearest  # the gallery is the later rows
    people = run.target('').images.identities
    np.testing.assert_array_equal(
      one.right, people[one.gallery] == people[one.query]
    )
  few = retrieval.rank(run, '', 3, 5)
  assert [r.query for r in few] == sorted({r.query for r in few})
  assert [r.query for r in few] == [
    r.query for r in retrieval.rank(run, '', 3, 5)
  ]


def test_ranked_sheet(run, tmp_path):
  figure = retrieval.draw_ranked(run, 'toy', num=2)
  assert len(figure.axes) == 2 * 11
  photos = [axes.get_images()[0].get_array() for axes in figure.axes]
  assert all(photo.shape == toy.IMAGE_SHAPE[:2] for photo in photos)
  one = retrieval.rank(run, '', 2, 0)[0]
  for axes, right in zip(figure.axes[1:11], one.right, strict=False):
    colour = axes.spines['left'].get_edgecolor()[:3]
    wanted = canvas.RIGHT if right else canvas.WRONG
    np.testing.assert_allclose(
      np.multiply(colour, 255), [int(wanted[k : k + 2], 16) for k in (1, 3, 5)]
    )
  written(figure, tmp_path / 'ranked.png')


def test_images_are_captioned_by_cameras_if_there_are_any():
  found = retrieval.captions(np.array([1, 0, 1]))
  assert found == ['camera 1', 'camera 0', 'camera 1']
  assert retrieval.captions(np.arange(3)) == ['', '', '']


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
    retrieval.rank(run, '', 2, 0)
  else:
    tsne.real(run, 0)
  assert told and all(kinds is not None for kinds in told)


def test_a_sheet_says_why_queries_match(run, tmp_path):
  figure = why.draw(run, 'toy', num=2)
  assert len(figure.axes) == 2 * 8
  one = retrieval.rank(run, '', 2, 0)[0]
  images = run.target('').images.images()
  shown = [axes.get_images()[0].get_array() for axes in figure.axes[:3]]
  for array, place in zip(
    shown[:2], (one.query, one.gallery[one.right][0]), strict=True
  ):
    np.testing.assert_array_equal(array, images[place][..., 0])
  assert shown[2].shape[0] == overlay.HEIGHT
  captions = [axes.get_xlabel() for axes in figure.axes[:8]]
  similarity = float(captions[1].removeprefix('similarity '))
  for caption in captions[2:4]:
    parts = [float(line.split()[1]) for line in caption.splitlines()]
    assert sum(parts) == pytest.approx(similarity, abs=2e-4)
  assert [c.split()[0] for c in captions[4:]] == ['r', 'similarity', 'r', 'r']
  written(figure, tmp_path / 'why.png')


def test_strangers_are_needed_to_say_why(run, monkeypatch):
  ranked = retrieval.rank(run, '', 1, 0)
  alone = [one._replace(right=np.ones_like(one.right)) for one in ranked]
  monkeypatch.setattr(retrieval, 'rank', lambda *_: alone)
  with pytest.raises(errors.ConfigError, match='two or more persons'):
    why.draw(run, 'toy')
