"""Centralised training: one client has the images of all domains.

This is a reference of FedReIDBench (journal version, table 3), which a
federation cannot use. The classifier has the identities of all domains.

  fedreid train centralised[:smoke|nine]
  fedreid train centralised:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.ALONE)
  c = presets.base('centralised', ('fedpav',))
  c.data.client_split = 'centralised'
  given.apply_preset(c)
  c.optim.reset_each_round = False
  return given.override(c)
