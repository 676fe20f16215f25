import dataclasses

import numpy as np
from PIL import Image

from fedreid_jax.config import claims
from fedreid_jax.figures import effects as figure
from fedreid_jax.sweeps import effects, study


def judged(name, low, high, verdict):
  found = effects.Effect((low + high) / 2, low, high, 2.0, 3, 9)
  return study.Judged(claims.CLAIMS[name], 50.0, 48.0, found, verdict)


def test_a_line_per_claim_with_its_mark(tmp_path):
  some = [
    judged('dfh', 1.0, 4.0, 'supported'),
    judged('kd', -2.0, 0.5, 'not supported'),
    judged('fedprox', -4.0, 1.0, 'not resolved'),
  ]
  axes = figure.draw(some).axes[0]
  texts = [label.get_text() for label in axes.get_yticklabels()]
  assert texts == [one.claim.text for one in reversed(some)]
  marks = [
    line.get_marker() for line in axes.lines if line.get_marker() in 'oXs'
  ]
  assert marks == ['s', 'X', 'o']
  centres = [c.lines[0].get_xdata()[0] for c in axes.containers]
  np.testing.assert_allclose(centres, [-1.5, -0.75, 2.5])
  figure.write(some, tmp_path / 'claims.png')
  with Image.open(tmp_path / 'claims.png') as image:
    assert min(image.size) > 200


def test_claims_without_runs_are_left_out(tmp_path):
  one = judged('dfh', 1.0, 4.0, 'supported')
  none = dataclasses.replace(one.claim)
  empty = study.Judged(none, np.nan, np.nan, None, 'no runs yet')
  figure.write([empty], tmp_path / 'claims.png')
  assert not list(tmp_path.iterdir())
  figure.write([one, empty], tmp_path / 'claims.png')
  assert list(tmp_path.iterdir())
