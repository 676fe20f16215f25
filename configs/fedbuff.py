"""FedBuff (Nguyen et al., AISTATS 2022): an asynchronous server.

Clients train all the time at different speeds, and the server updates its model
at every third upload. No table of the papers contains it; it is the method of
federations whose clients do not wait for each other.

  fedreid train fedbuff[:smoke|nine]
  fedreid train fedbuff:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedbuff', ('fedpav', 'fedbuff'))
  c.fraction = 0.5
  c.availability.in_flight = 3
  c.availability.step_s = 1.0
  c.availability.speed_spread = 0.7
  given.apply_preset(c)
  return given.override(c)
