"""Figure of images beside their reconstructions from gradients."""

from typing import Any

from fedreid_jax.apps.audit.gradient.gradient_audit import Inverted
from fedreid_jax.figures import canvas
from fedreid_jax.figures.canvas import Photo

SHOWN = 16  # images
PAIR = ('image', 'from its\ngradient')
CONTROLS = ('image', 'control')


def draw(found: Inverted, title: str) -> Any:
  """Draws images beside their reconstructions, and both controls."""
  pairs = [
    (
      Photo(found.originals[k], None, f'person {found.labels[k]}'),
      Photo(found.found[k], None, f'{found.gains[k]:+.1f} dB'),
    )
    for k in range(min(len(found.labels), SHOWN))
  ]
  controls = [
    (
      Photo(found.control[0], None, 'sigmoids'),
      Photo(found.control[1], None, f'{found.positive:+.1f} dB'),
    ),
    (
      Photo(found.originals[0], None, 'random'),
      Photo(found.random, None, f'{found.negative:+.1f} dB'),
    ),
  ]
  height = max(-(-len(pairs) // 2), len(controls))
  rows: list[list[Photo | None]] = [[None] * 6 for _ in range(height)]
  for k, pair in enumerate(pairs):
    side = 2 * (k // height)
    rows[k % height][side : side + 2] = pair
  for k, pair in enumerate(controls):
    rows[k][4:] = pair
  return canvas.sheet(rows, (*PAIR, *PAIR, *CONTROLS), title, gaps=(2, 4))
