"""DACS (Yang et al., AAAI 2024) under FedPav: images in a learned style.

Every client transforms its images, learns transformations that its own local
model finds hard and the global model easy, and trains on both kinds of images.

  fedreid train dacs[:smoke|nine]
  fedreid train dacs:photos,data.root=DIR

`paper` is DFH's setting, which is also that of the released code of DACS.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,space=b][,key=value...]`."""
  given = parsing.argument(
    arg, presets.GENERALISED, space=parsing.choices('dfh.space')
  )
  c = presets.with_triplet('dacs', ('fedpav', 'dacs'), given)
  return given.override(c)
