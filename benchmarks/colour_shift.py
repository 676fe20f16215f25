"""How much of the shift between domains is colour and contrast.

  python -m benchmarks.colour_shift [--recipe=dfh:trial]

The program evaluates the models with which the recipe starts on its targets,
first as they are and then with the pixels of every photograph standardised: per
colour channel, each photograph gets the mean and the standard deviation that
the photographs of its domain have on average. Nothing is trained, and batch
normalisation has the running moments. It prints mAP for each target.
"""

import sys
from collections.abc import Callable

import numpy as np
from absl import app, flags
from jaxtyping import UInt8

from fedreid_jax.config import recipes, validation
from fedreid_jax.data.federation import Federation, Images
from fedreid_jax.training import build

_RECIPE = flags.DEFINE_string('recipe', 'dfh:trial', 'Recipe and its argument.')
_SMALLEST = 1e-3  # standard deviation of a photograph of one colour


def standardised(pixels: UInt8[np.ndarray, 'M H W ch']) -> np.ndarray:
  """Returns photographs that have the same moments in each channel."""
  values = np.asarray(pixels).astype(np.float32)
  mean = values.mean((1, 2), keepdims=True)
  deviation = values.std((1, 2), keepdims=True) + _SMALLEST
  unit = (values - mean) / deviation
  moved = unit * deviation.mean(0) + mean.mean(0)
  return moved.clip(0, 255).astype(np.uint8)


def changed(federation: Federation) -> Federation:
  """Returns the federation with standardised photographs of its targets."""

  def change(images: Images) -> Images:
    return images._replace(images=lambda: standardised(images.images()))

  targets = tuple(
    target._replace(images=change(target.images))
    for target in federation.targets
  )
  return federation._replace(targets=targets)


def main(argv: list[str]) -> None:
  """Prints mAP of the start on both kinds of photographs."""
  del argv
  name, _, argument = _RECIPE.value.partition(':')
  chosen = recipes.recipe(name, argument)
  chosen.evaluation.batch_stats = 'running'
  config = validation.validate(chosen)
  load: Callable[..., Federation] = build.load.load
  for kind, made in (
    ('as they are', load),
    ('standardised', lambda *a, **b: changed(load(*a, **b))),
  ):
    build.load.load = made
    setup = build.build(config)
    for entry in setup.evaluate({'global': setup.variables}):
      score = entry['metrics']['mAP']
      print(f'{entry["target"]}, {kind}: {score:.1f} mAP')


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
