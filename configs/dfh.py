"""DFH: federated domain generalisation by feature hallucination.

The local loss is cross-entropy and hard triplet loss of margin 0.5 on the
pooled feature (`space=b`: on its normalisation, which is then also ranked),
plus the triplet loss on hallucinated features with weight 5. The recipe uses
SGD, momentum 0.9, weight decay 5e-4 and PK batches; clients send statistics
after every round.

  fedreid train dfh[:smoke]
  fedreid train dfh:synthetic,space=b
  fedreid train dfh:photos,data.root=DIR
  fedreid train dfh:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

Published, mAP / rank-1 (DFH table 1): on Market-1501 from MSMT17, CUHK02 and
CUHK03 31.3 / 56.5 (FedPav 25.4 / 49.4); on CUHK02 71.7 / 69.5 (62.6 / 59.8); on
CUHK03 27.2 / 30.5 (22.5 / 24.3). Measured results, in which no gain of DFH at
its own rate is resolved, are in docs/results/unseen.md.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,space=b][,key=value...]`."""
  given = parsing.argument(
    arg, presets.GENERALISED, space=parsing.choices('dfh.space')
  )
  c = presets.with_triplet('dfh', ('fedpav', 'dfh'), given)
  return given.override(c)
