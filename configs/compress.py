"""Compressed uploads: few bits a value, or few values with error feedback.

The default sends 8 bits a parameter, a quarter of FedPav's bytes up;
`compress.bits=4|2` sends fewer, and `compress.kind=topk` the largest
`compress.ratio` of all values. `communication` in results.json has the bytes.
No table of the papers contains it.

  fedreid train compress[:smoke|nine]
  fedreid train compress:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('compress', ('fedpav', 'compress'))
  given.apply_preset(c)
  return given.override(c)
