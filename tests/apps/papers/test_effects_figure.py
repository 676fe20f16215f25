import numpy as np
from PIL import Image

from fedreid_jax.apps.papers.figures import effects as figure
from fedreid_jax.apps.papers.runs import effects


def line(name, low, high, verdict, margin=0.0):
  found = effects.Effect((low + high) / 2, low, high, 2.0, 3, 9)
  return figure.Line(name, found, verdict, margin)


def test_a_line_per_claim_with_its_mark(tmp_path):
  some = [
    line('dfh', 1.0, 4.0, 'supported'),
    line('kd', -2.0, 0.5, 'lower'),
    line('fedprox', -4.0, 1.0, 'not resolved', 1.0),
  ]
  axes = figure.draw(some, 'difference').axes[0]
  texts = [label.get_text() for label in axes.get_yticklabels()]
  assert texts == ['fedprox', 'kd', 'dfh']
  assert axes.get_xlabel() == 'difference, 95 % interval'
  marks = [
    line.get_marker() for line in axes.lines if line.get_marker() in 'oXs'
  ]
  assert marks == ['s', 'X', 'o']
  centres = [c.lines[0].get_xdata()[0] for c in axes.containers]
  np.testing.assert_allclose(centres, [-1.5, -0.75, 2.5])
  figure.write(some, tmp_path / 'claims.png', 'difference')
  with Image.open(tmp_path / 'claims.png') as image:
    assert min(image.size) > 200


def test_without_effects_there_is_no_picture(tmp_path):
  figure.write([], tmp_path / 'claims.png', 'difference')
  assert not list(tmp_path.iterdir())
