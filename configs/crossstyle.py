"""CrossStyle (CrossNorm, Tang et al., ICCV 2021) under FedPav: other styles.

In half of the batches the maps after the first stage receive the means and
deviations of another image of the batch of the client.

  fedreid train crossstyle[:smoke|nine]
  fedreid train crossstyle:photos,data.root=DIR

`paper` is DFH's setting. The rows of feddg/protocol1 of `fedreid table` have a
transformer and their own setting.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,space=b][,key=value...]`."""
  given = parsing.argument(
    arg, presets.GENERALISED, space=parsing.choices('dfh.space')
  )
  c = presets.with_triplet('crossstyle', ('fedpav', 'crossstyle'), given)
  return given.override(c)
