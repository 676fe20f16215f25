"""CCST (Chen et al., WACV 2023) under FedPav: styles of other clients.

Every client sends the mean and the deviation of its maps after the first stage,
and trains on its images in the styles of the others as well, by AdaIN in its
own network.

  fedreid train ccst[:smoke|nine]
  fedreid train ccst:photos,data.root=DIR

`paper` is DFH's setting; no table of the papers contains it.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,space=b][,key=value...]`."""
  given = parsing.argument(
    arg, presets.GENERALISED, space=parsing.choices('dfh.space')
  )
  c = presets.with_triplet('ccst', ('fedpav', 'ccst'), given)
  return given.override(c)
