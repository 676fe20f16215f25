"""FedSR (Nguyen et al., NeurIPS 2022) under FedPav: random representations.

A sample of the representation is classified in training, with penalties of its
norm and of its divergence from a distribution of the identity; galleries are
ranked by its mean.

  fedreid train fedsr[:smoke|nine]
  fedreid train fedsr:photos,data.root=DIR

`paper` is DFH's setting; no table of the papers contains it.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,space=b][,key=value...]`."""
  given = parsing.argument(
    arg, presets.GENERALISED, space=parsing.choices('dfh.space')
  )
  c = presets.with_triplet('fedsr', ('fedpav', 'fedsr'), given)
  return given.override(c)
