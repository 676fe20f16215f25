"""Baseline (ERM) of shared entities: one stream, cross-entropy and circle loss.

`erm`'s released code has cross-entropy only: `loss.circle=0.0`.

  fedreid train erm[:smoke]
  fedreid train erm:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

Table rows: L2RW table 2, ES; one client with the images of two entities, tested
on the third. Published numbers:
`fedreid_jax/apps/papers/tables/l2rw.py`.
"""

from fedreid_jax.config import infrared, parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, infrared.PRESETS)
  c = infrared.shared('erm', ('fedavg',), 0)
  given.apply_preset(c)
  c.loss.circle = 1.0
  return given.override(c)
