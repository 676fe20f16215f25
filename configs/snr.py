"""SNR (Jin et al., CVPR 2020) under FedPav: style normalisation, restitution.

Modules after every stage remove style from the maps and restore the part that
distinguishes persons. `loss=entropy` is the journal's loss with one classifier
per stage.

  fedreid train snr[:smoke|nine]
  fedreid train snr:photos,data.root=DIR

Table rows: DFH table 1, SNR: mAP / rank-1 on CUHK02, Market-1501, CUHK03 are in
fedreid_jax/apps/papers/tables. `paper` is DFH's setting. Measured results are
in docs/results/unseen.md.
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
  c = presets.with_triplet('snr', ('fedpav', 'snr'), given)
  c.snr.loss = given.options['loss']
  return given.override(c)
