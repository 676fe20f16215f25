"""CAJ (Ye et al., ICCV 2021) on shared entities: AGW with channel exchange.

`loss.weighted_squared=True` selects its own form of the triplet loss. The
choices of `consistency=` add a divergence between the predictions for visible
images and for another view of the same persons (`caj.lam` is its weight):

  none      as in L2RW (default)
  copy      the copies with exchanged channels, as in CAJ+
  infrared  infrared images at temperature 3, the option of CAJ's code

  fedreid train caj[:smoke]
  fedreid train caj:synthetic,consistency=copy
  fedreid train caj:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

Table rows: L2RW table 2, ES; one client with the images of two entities, tested
on the third. Published numbers:
`fedreid_jax/apps/papers/tables/l2rw.py`.
"""

from fedreid_jax.config import infrared, parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,consistency=...][,key=value...]`."""
  given = parsing.argument(
    arg, infrared.PRESETS, consistency=('none', 'copy', 'infrared')
  )
  c = infrared.shared('caj', ('fedavg', 'agw'), 1)
  given.apply_preset(c)
  view = given.options['consistency']
  if view != 'none':
    c.components = (*c.components, 'caj')
    c.caj.teacher = view
    c.caj.temperature = 3.0 if view == 'infrared' else 1.0
  c.loss.weighted_triplet = 1.0
  c.local.sampler, c.local.batch = 'pk_caj', 96
  infrared.erase(c)
  c.augment.infrared, c.augment.copies = 'adapt', 'copy'
  infrared.freeze_bias(c)
  return given.override(c)
