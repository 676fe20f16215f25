"""DEEN (Zhang & Wang, CVPR 2023) on shared entities: diverse embeddings.

  fedreid train deen[:smoke]
  fedreid train deen:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

Table rows: L2RW table 2, ES; one client with the images of two entities, tested
on the third. Published numbers:
`fedreid_jax/apps/papers/tables/l2rw.py`.
"""

from fedreid_jax.config import infrared, parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, infrared.PRESETS)
  c = infrared.shared('deen', ('fedavg', 'deen'), 1)
  given.apply_preset(c)
  c.model.pool = 'gap'
  c.loss.identity = 0.0  # the component is the whole loss
  c.local.batch, c.local.identities = 48, 6
  infrared.erase(c)
  c.augment.grey, c.augment.erase_area = 0.5, (0.2, 0.8)
  c.augment.erase_fill = c.data.mean  # after normalisation, as released
  infrared.freeze_bias(c)
  if given.preset == 'paper':
    c.data.height = 384
  if given.preset == 'synthetic':
    # From random initial weights, a rate of 0.01 maps all features of few
    # persons to one point, or not, by the last bits of the floats.
    c.optim.lr = 0.003
  return given.override(c)
