"""AGW (Ye et al., TPAMI 2022) on shared entities: non-local blocks.

  fedreid train agw[:smoke]
  fedreid train agw:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

Table rows: L2RW table 2, ES; one client with the images of two entities, tested
on the third. Published numbers:
`fedreid_jax/apps/papers/tables/l2rw.py`.
"""

from fedreid_jax.config import infrared, parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, infrared.PRESETS)
  c = infrared.shared('agw', ('fedavg', 'agw'), 1)
  given.apply_preset(c)
  c.loss.weighted_triplet = 1.0
  infrared.freeze_bias(c)
  return given.override(c)
