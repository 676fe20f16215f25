"""Secure aggregation: the server receives the sum of the uploads only.

FedPav with uploads as masked integers modulo 2^32 (Bonawitz et al., CCS 2017),
simulated exactly. The models are those of FedPav but for a rounding of about
1e-8; `secagg.dropout` loses uploads, and `secagg.bits=16` sends half of the
bytes. No table of the papers contains it.

  fedreid train secagg[:smoke|nine]
  fedreid train secagg:photos,data.root=DIR

A round needs three clients, and by default two thirds of its uploads.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('secagg', ('fedpav', 'secagg'))
  given.apply_preset(c)
  return given.override(c)
