"""SNR + DFH: style normalisation and hallucinated domains together.

  fedreid train snr_dfh[:smoke|nine]
  fedreid train snr_dfh:photos,data.root=DIR

Table rows: DFH table 1, SNR + DFH, in fedreid_jax/apps/papers/tables. The loss
of SNR is computed on the original batch only, not on hallucinated features.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,loss=entropy][,space=b][,...]`."""
  given = parsing.argument(
    arg,
    presets.GENERALISED,
    loss=parsing.choices('snr.loss'),
    space=parsing.choices('dfh.space'),
  )
  c = presets.with_triplet('snr_dfh', ('fedpav', 'snr', 'dfh'), given)
  c.snr.loss = given.options['loss']
  return given.override(c)
