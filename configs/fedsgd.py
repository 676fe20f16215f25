"""FedSGD as defined in Wu & Gong's table 2, or by McMahan et al.

`p4` (default) is FedAvg with all clients and one local epoch. With `strict` a
client sums the gradients of all its images, and the server makes one step per
round:

  fedreid train fedsgd[:smoke|nine]
  fedreid train fedsgd:synthetic,variant=strict

Table rows: Wu & Gong table 2 (FedSGD), which equals FedAVG at S=1 there.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,variant=strict][,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED, variant=('p4', 'strict'))
  c = presets.base('fedsgd', ('fedavg',))
  given.apply_preset(c)
  c.data.labels = 'max'
  if given.options['variant'] == 'strict':
    c.local.accumulate, c.local.drop_last = True, False
    c.optim.momentum, c.optim.nesterov = 0.0, False
  return given.override(c)
