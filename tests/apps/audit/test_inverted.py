import numpy as np
import pytest

from fedreid_jax.apps.audit.gradient import inverted
from fedreid_jax.apps.audit.gradient.gradient_audit import Inverted
from fedreid_jax.apps.audit.gradient.gradient_identified import Identified


def result(number):
  images = np.zeros((number, 8, 4, 3), np.uint8)
  return Inverted(
    gains=tuple(float(k) for k in range(number)),
    gain=1.0,
    interval=(0.0, 2.0),
    positive=17.8,
    noisy=None,
    negative=-6.1,
    failed=(),
    persons=Identified(0.5, (0.1, 0.9), 1.0, 0.1),
    labels=tuple(range(10, 10 + number)),
    originals=images,
    found=images,
    control=images[:2],
    random=images[0],
  )


@pytest.mark.parametrize('number, height', [(2, 2), (5, 3), (8, 4)])
def test_every_image_is_beside_its_reconstruction(number, height):
  figure = inverted.draw(result(number), 'title')
  words = [axes.get_xlabel() for axes in figure.axes]
  assert len(words) == 6 * height
  for k in range(number):
    place = words.index(f'person {10 + k}')
    assert words[place + 1] == f'+{k}.0 dB'
  assert words[4:6] == ['sigmoids', '+17.8 dB']
  assert words[10:12] == ['random', '-6.1 dB']
