"""FedUReID (Zhuang et al., ACM MM 2021): clients without labels.

A client merges the nearest of its clusters of images after each round; at first
every image is a cluster. `data.unlabelled` has the domains without labels, all
of them by default.

  fedreid train fedureid[:smoke|nine]
  fedreid train fedureid:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.without_labels('fedureid', ('fedpav', 'fedureid'), given)
  return given.override(c)
