"""FedOpt (Reddi et al., ICLR 2021): an optimiser at the server.

The default is FedAdam; the others are `fedopt.name=yogi|adagrad`, or `sgd` with
`fedopt.lr=1.0` for FedAvgM. No table of the papers contains it; it is a common
method of federated libraries.

  fedreid train fedopt[:smoke|nine]
  fedreid train fedopt:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedopt', ('fedpav', 'fedopt'))
  given.apply_preset(c)
  return given.override(c)
