"""Cluster Contrast (Dai et al., ACCV 2022): clients without labels.

A client clusters its images by DBSCAN on re-ranked Jaccard distances after each
round, and trains with a memory of its clusters. `data.unlabelled` has the
domains without labels, all of them by default. Domains with more images of a
person than the synthetic ones need more neighbours (`cluster_contrast.k1`).

  fedreid train cluster_contrast[:smoke|nine]
  fedreid train cluster_contrast --config.data.unlabelled="('plaza',)"
  fedreid train cluster_contrast:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.without_labels(
    'cluster_contrast', ('fedpav', 'cluster_contrast'), given
  )
  # Market-1501 has 17 images of a person, synthetic domains 2 to 16.
  if c.data.source.startswith('synthetic'):
    c.cluster_contrast.k1, c.cluster_contrast.k2 = 10, 3
  return given.override(c)
