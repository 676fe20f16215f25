r"""Training of the weights that other runs start from.

The papers start from ImageNet. In its place stand eleven domains of a world
that no other recipe has, of the first version `synthetic_v1`: 1,210 persons,
each seen by four visible cameras and one infrared camera. Other runs read the
backbone by its name, `--config.model.pretrained=convnet-synthetic`; `python -m
benchmarks.publish_weights` writes it with its card. The images are in one
place; those of the preset `persons`, which is a federation of eleven clients,
are not: it trains MobileNetV2 from the weights of ImageNet on 2,200 persons.

  fedreid train pretrain[:smoke]
  fedreid train pretrain:network=resnet18|vit
  fedreid train pretrain:persons,network=mobilenet_v2 \
    --config.model.pretrained=FILE.safetensors
"""

from fedreid_jax.config import parsing, presets

NETWORKS = ('convnet', 'resnet18', 'vit', 'mobilenet_v2')


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,network=NAME][,key=value...]`."""
  given = parsing.argument(arg, presets.PRETRAINING, network=NETWORKS)
  c = presets.base('pretrain', ('fedpav',))
  c.data.client_split = 'centralised'
  given.apply_preset(c)
  c.model.name = given.options['network']
  if c.model.name != 'mobilenet_v2':
    c.model.width = 0.25  # of resnet18
  c.optim.reset_each_round = False
  return given.override(c)
