"""A median of models trained with the centre loss, on random patterns.

fedreid train examples/plugin/recipe.py
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, {'synthetic': _patterns})
  package = 'fedreid_plugin_example'
  c = presets.base(
    'plugin',
    ('fedpav', f'{package}.median', f'{package}.centre_loss'),
  )
  c.model.name = f'{package}.network'
  c.data.source = f'{package}.source'
  c.evaluation.extra = (f'{package}.camera_bias',)
  given.apply_preset(c)
  return given.override(c)


def _patterns(c) -> None:
  """Sets three clients and a held-out domain of 16x8 images."""
  c.data.sources, c.data.targets = ('north', 'south', 'east'), ('west',)
  c.data.height, c.data.width = 16, 8
  c.augment.pad = 1
  c.rounds, c.evaluation.every = 3, 3
  c.local.batch = 8
  c.optim.lr = 0.02
