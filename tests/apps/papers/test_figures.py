"""Pictures of effects, and of metrics over the values of swept fields."""

import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.apps.papers import effects, figures, report
from fedreid_jax.apps.papers.report import Line
from fedreid_jax.figures import canvas


def bar(name, low, high, verdict, margin=0.0):
  found = effects.Effect((low + high) / 2, low, high, 2.0, 3, 9, 1.0, 8.0)
  return figures.Bar(name, found, verdict, margin)


def test_a_line_per_claim_with_its_mark(tmp_path):
  some = [
    bar('dfh', 1.0, 4.0, 'supported'),
    bar('kd', -2.0, 0.5, 'lower'),
    bar('fedprox', -4.0, 1.0, 'not resolved', 1.0),
  ]
  axes = figures.draw_effects(some, 'difference').axes[0]
  texts = [label.get_text() for label in axes.get_yticklabels()]
  assert texts == ['fedprox', 'kd', 'dfh']
  assert axes.get_xlabel() == 'difference, 95 % interval'
  marks = [
    line.get_marker() for line in axes.lines if line.get_marker() in 'oXs'
  ]
  assert marks == ['s', 'X', 'o']
  centres = [c.lines[0].get_xdata()[0] for c in axes.containers]
  np.testing.assert_allclose(centres, [-1.5, -0.75, 2.5])
  figures.write_effects(some, tmp_path / 'claims.png', 'difference')
  with Image.open(tmp_path / 'claims.png') as image:
    assert min(image.size) > 200


def test_groups_stand_beside_each_other(tmp_path):
  """Each with its own methods; the legend has every verdict once."""
  groups = {
    'from random weights': [bar('DFH', 1.0, 4.0, 'supported')],
    'from rendered weights': [
      bar('DFH', -4.0, -1.0, 'not supported'),
      bar('SNR', 1.0, 2.0, 'supported'),
    ],
  }
  figure = figures.draw_groups(groups, 'mAP over FedPav')
  titles = [axes.get_title() for axes in figure.axes]
  assert titles == [*groups]
  names = [
    [label.get_text() for label in axes.get_yticklabels()]
    for axes in figure.axes
  ]
  assert names == [['DFH'], ['SNR', 'DFH']]
  (legend,) = figure.legends
  words = [text.get_text() for text in legend.get_texts()]
  assert sorted(words) == ['not supported', 'supported']
  figures.write_groups({}, tmp_path / 'none.png', '')
  assert not (tmp_path / 'none.png').exists()


def test_without_effects_there_is_no_picture(tmp_path):
  figures.write_effects([], tmp_path / 'claims.png', 'difference')
  assert not list(tmp_path.iterdir())


WEIGHTS = (2.0, 0.1, 1.0)


def line(facts, samples=3, target='plaza', name='dppt', **numbers):
  """A result with mAP 50 and a spread of 2 unless it is given."""
  numbers = {'mAP': 50.0, 'mAP std': 2.0, 'rank1': 60.0} | numbers
  label = ' '.join((name, *(f'{k}={v}' for k, v in facts.items())))
  return Line(
    label, facts, target, 'global', 'last', samples, numbers, 1.0, 1.0
  )


def cross():
  """The weight at K = 4, and K at a weight of 1."""
  pairs = [(lam, 4) for lam in WEIGHTS] + [(1.0, 1)]
  return [
    line({'dppt.lam': str(lam), 'dppt.k': str(k)}, mAP=10 * lam + k)
    for lam, k in pairs
  ]


def panels(figure):
  """`{(field, metric): {line: [(value, mean)]}}`."""
  found = {}
  for axes in figure.axes:
    found[axes.get_xlabel(), axes.get_ylabel()] = {
      line.get_label(): list(
        zip(line.get_xdata(), line.get_ydata(), strict=True)
      )
      for line in axes.get_lines()
    }
  return found


def test_a_target_has_a_bar_per_label():
  lines = [
    line({'n': n}, target=target, mAP=10.0 * int(n))
    for target in ('plaza', 'mall')
    for n in '12'
  ]
  figure = figures.draw_bars([*lines, lines[0]._replace(kind='best')])
  first, second = figure.axes
  assert (first.get_ylabel(), second.get_ylabel()) == ('mAP, %', 'rank-1, %')
  bars = [bar for bar in first.patches if bar.get_width()]
  found = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in bars]
  expected = [(-0.4, 10), (0.6, 10), (0.0, 20), (1.0, 20)]
  expected = [(x, 0.4, y) for x, y in expected]
  np.testing.assert_allclose(found, expected, atol=1e-9)
  (band, *_) = first.containers[0].get_children()[0].get_segments()
  np.testing.assert_allclose(band[:, 1], [8, 12])
  with pytest.raises(errors.ConfigError, match='no results'):
    figures.draw_bars([])


def test_one_field_at_a_time_is_one_line_a_panel():
  found = panels(figures.draw_sweep(cross()))
  assert set(found) == {
    (field, metric)
    for field in ('dppt.lam', 'dppt.k')
    for metric in ('mAP, %', 'rank-1, %')
  }
  assert found['dppt.lam', 'mAP, %'] == {
    'dppt.k=4': [(0.1, 5.0), (1.0, 14.0), (2.0, 24.0)]  # in order
  }
  assert found['dppt.k', 'mAP, %'] == {'dppt.lam=1.0': [(1.0, 11), (4.0, 14)]}


def test_the_band_is_a_standard_deviation_to_either_side():
  figure = figures.draw_sweep(cross())
  _, band = figure.axes[0].collections
  corners = band.get_paths()[0].vertices
  np.testing.assert_allclose(
    [corners[corners[:, 0] == 2.0][:, 1].min()], [24.0 - 2.0]
  )
  assert corners[:, 1].max() == 24.0 + 2.0
  assert '3 runs' in figure.get_suptitle()
  single = [x._replace(samples=1) for x in cross()]
  assert 'band' not in figures.draw_sweep(single).get_suptitle()


def test_points_of_fewer_runs_are_hollow():
  lines = cross()
  lines[0] = lines[0]._replace(samples=2)  # the weight 2
  figure = figures.draw_sweep(lines)
  assert '3 runs; hollow: fewer runs' in figure.get_suptitle()
  weights, sizes = (figure.axes[k].collections[0] for k in (0, 1))
  np.testing.assert_array_equal(weights.get_offsets(), [[2.0, 24.0]])
  assert not len(sizes.get_offsets())
  assert 'hollow' not in figures.draw_sweep(cross()).get_suptitle()


def test_a_grid_has_a_line_per_value_of_the_other_field():
  lines = [
    line({'a': a, 'b': b}, mAP=float(a) + 10 * float(b))
    for a in '12'
    for b in '34'
  ]
  assert panels(figures.draw_sweep(lines))['a', 'mAP, %'] == {
    'b=3': [(1.0, 31.0), (2.0, 32.0)],
    'b=4': [(1.0, 41.0), (2.0, 42.0)],
  }


def test_fields_that_only_change_together_are_one():
  lines = [
    line({'local.epochs': e, 'rounds': r}, mAP=float(r))
    for e, r in (('1', '300'), ('5', '60'))
  ]
  figure = figures.draw_sweep(lines)
  field = 'local.epochs+rounds'
  assert set(panels(figure)) == {(field, 'mAP, %'), (field, 'rank-1, %')}
  words = [label.get_text() for label in figure.axes[0].get_xticklabels()]
  assert words == ['1, 300', '5, 60']


def test_methods_and_targets_are_lines():
  lines = [
    line({'lr': lr}, name=name, target=target)
    for lr in ('0.1', '0.2')
    for name in ('dfh', 'snr')
    for target in ('mall', 'park')
  ]
  both = panels(figures.draw_sweep(lines))['lr', 'mAP, %']
  assert set(both) == {
    f'{n}, {t}' for n in ('dfh', 'snr') for t in ('mall', 'park')
  }
  one = panels(figures.draw_sweep(lines, target='park'))['lr', 'mAP, %']
  assert set(one) == {'dfh', 'snr'}


@pytest.mark.parametrize(
  'lines, target, message',
  [
    ([], '', 'there are none'),
    (cross(), 'moon', 'no results of global on moon.*global on plaza'),
    (cross()[:1], '', 'no field has two values'),
    ([line({})], '', 'no field has two values'),
  ],
)
def test_what_cannot_be_drawn(lines, target, message):
  with pytest.raises(errors.ConfigError, match=message):
    figures.draw_sweep(lines, target)


def test_the_table_of_a_sweep_is_read_as_it_was_written(tmp_path):
  lines = [*cross(), line({'dppt.lam': '3.0', 'dppt.k': '4'}, samples=1)]
  del lines[-1].numbers['mAP std']
  unfinished = {'label': 'x', 'seed': '0', 'dppt.k': '4', 'error': 'error[5]'}
  report.write(tmp_path / 'table', 'title', lines, [unfinished])
  assert report.read(tmp_path / 'table') == lines
  (tmp_path / 'table.csv').write_text('label,target\nx,y\n')
  for name in ('table', 'none'):
    with pytest.raises(errors.IntegrityError, match='no table of a sweep'):
      report.read(tmp_path / name)


def test_the_same_sweep_is_the_same_file(tmp_path):
  for name in ('a.png', 'b.png'):
    canvas.save(figures.draw_sweep(cross()), tmp_path / name)
  one, other = (tmp_path / name for name in ('a.png', 'b.png'))
  assert one.read_bytes() == other.read_bytes()
