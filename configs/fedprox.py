"""FedProx (Li et al., MLSys 2020) on FedPav's split of the model.

Table rows: FedReIDBench journal version, table 4 (local models, rank-1 against
standalone). mu is not published: 0.01 is an assumption.

  fedreid train fedprox[:smoke|nine]
  fedreid train fedprox:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedprox', ('fedpav', 'fedprox'))
  given.apply_preset(c)
  return given.override(c)
