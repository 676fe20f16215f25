"""Pictures that a test has written."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedreid_jax.figures import canvas


def written(figure, path: Path) -> np.ndarray:
  canvas.save(figure, path)
  assert [p.name for p in path.parent.iterdir()] == [path.name]
  with Image.open(path) as image:
    pixels = np.asarray(image.convert('RGB'))
  assert min(pixels.shape[:2]) > 200 and len(np.unique(pixels)) > 10
  return pixels
