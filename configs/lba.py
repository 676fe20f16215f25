"""LBA (Park et al., ICCV 2021) on shared entities: dense cross-modal alignment.

  fedreid train lba[:smoke]
  fedreid train lba:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

Table rows: L2RW table 2, ES; one client with the images of two entities, tested
on the third. Published numbers:
`fedreid_jax/apps/papers/tables/l2rw.py`.
"""

from fedreid_jax.config import infrared, parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, infrared.PRESETS)
  c = infrared.shared('lba', ('fedavg', 'lba'), 1)
  given.apply_preset(c)
  c.loss.triplet, c.loss.margin, c.loss.triplet_on = 1.0, 0.3, 'feature'
  c.evaluation.feature = 'feature'
  c.augment.pad = 0
  infrared.freeze_bias(c)
  return given.override(c)
