"""SSCU (ACM Multimedia 2025) under FedPav: DACS with a memory of identities.

Every client transforms its images as in `dacs`, and learns identities from a
memory of their mean features, which the transformed images move.

  fedreid train sscu[:smoke|nine]
  fedreid train sscu:photos,data.root=DIR

`paper` is DFH's setting; the tables of SSCU's own have protocols of their own.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,space=b][,key=value...]`."""
  given = parsing.argument(
    arg, presets.GENERALISED, space=parsing.choices('dfh.space')
  )
  c = presets.with_triplet('sscu', ('fedpav', 'sscu'), given)
  c.loss.identity = 0.0  # the memory takes the place of the classifier
  return given.override(c)
