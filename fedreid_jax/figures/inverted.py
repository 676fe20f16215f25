"""Images beside what gradient inversion made of their gradients."""

from typing import Any

from fedreid_jax.figures import canvas
from fedreid_jax.figures.canvas import Photo
from fedreid_jax.privacy.gradient_audit import Inverted

SHOWN = 8  # images
TITLES = ('image', 'from its\ngradient', 'image', 'control')


def draw(found: Inverted, title: str) -> Any:
  """Draws images with their reconstructions, and both controls.

  Args:
    found: results of the audit.
    title: of the figure.
  """
  rows: list[list[Photo | None]] = [
    [
      Photo(found.originals[k], None, f'person {found.labels[k]}'),
      Photo(found.found[k], None, f'{found.gains[k]:+.1f} dB'),
      None,
      None,
    ]
    for k in range(min(len(found.labels), SHOWN))
  ]
  rows[0][2:] = [
    Photo(found.control[0], None, 'sigmoids'),
    Photo(found.control[1], None, f'{found.positive:+.1f} dB'),
  ]
  rows[1][2:] = [
    Photo(found.originals[0], None, 'random'),
    Photo(found.random, None, f'{found.negative:+.1f} dB'),
  ]
  return canvas.sheet(rows, TITLES, title, gaps=(2,))
