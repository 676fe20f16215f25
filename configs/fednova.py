"""FedNova (Wang et al., NeurIPS 2020) on FedPav's split of the model.

Table rows: FedReIDBench journal version, table 4 (local models, rank-1 against
standalone).

  fedreid train fednova[:smoke|nine]
  fedreid train fednova:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fednova', ('fedpav', 'fednova'))
  given.apply_preset(c)
  return given.override(c)
