"""DNS (Jiang et al., ECCV 2024) on shared entities: domain shifting.

As in its released code, the bias of the neck is trained.

  fedreid train dns[:smoke]
  fedreid train dns:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

Table rows: L2RW table 2, ES; one client with the images of two entities, tested
on the third. Published numbers:
`fedreid_jax/apps/papers/tables/l2rw.py`.
"""

from fedreid_jax.config import infrared, parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, infrared.PRESETS)
  c = infrared.shared('dns', ('fedavg', 'dns'), 3)
  c.optim.schedule, c.optim.schedule_per_step = 'linear', True
  c.optim.lr, c.optim.warmup = 0.2, 0
  given.apply_preset(c)
  c.loss.circle = 1.0
  c.local.batch, c.local.identities = 48, 6
  infrared.dns_rates(c)
  infrared.erase(c)
  c.augment.infrared = 'hue'
  c.augment.channel, c.augment.channel_kinds = 2 / 3, 'copy'
  return given.override(c)
