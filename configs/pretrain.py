"""Centralised training of the weights that other runs start from.

The papers start from ImageNet. In its place stand eleven domains of a world
that no other recipe has, of the first version `synthetic_v1`: 1,210 persons,
each seen by four visible cameras and one infrared camera. Other runs read the
backbone by its name, `--config.model.pretrained=convnet-synthetic`; `python -m
benchmarks.publish_weights` writes it with its card.

  fedreid train pretrain[:smoke]
  fedreid train pretrain:network=resnet18|vit
"""

from fedreid_jax.config import parsing, presets

NETWORKS = ('convnet', 'resnet18', 'vit')


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,network=NAME][,key=value...]`."""
  given = parsing.argument(arg, presets.PRETRAINING, network=NETWORKS)
  c = presets.base('pretrain', ('fedpav',))
  c.data.client_split = 'centralised'
  given.apply_preset(c)
  c.model.name = given.options['network']
  c.model.width = 0.25  # of resnet18
  c.optim.reset_each_round = False
  return given.override(c)
