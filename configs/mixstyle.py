"""MixStyle (Zhou et al., ICLR 2021) under FedPav: mixed styles of a batch.

In training the means and deviations of the maps after the first two stages are
mixed between the images of a batch of the client.

  fedreid train mixstyle[:smoke|nine]
  fedreid train mixstyle:photos,data.root=DIR

`paper` is DFH's setting; no table of the papers contains it.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,space=b][,key=value...]`."""
  given = parsing.argument(
    arg, presets.GENERALISED, space=parsing.choices('dfh.space')
  )
  c = presets.with_triplet('mixstyle', ('fedpav', 'mixstyle'), given)
  return given.override(c)
