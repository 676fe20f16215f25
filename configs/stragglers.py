"""FedPav on clients of different speed, with a deadline and over-selection.

Speed and bandwidth of the devices are log-normal. A round invites 30 % more
clients than it needs and takes the first ones to arrive (Bonawitz et al., MLSys
2019). The synthetic presets divide one domain over 40 clients, and their rounds
end after 10 seconds. Clients of other presets train for longer: set
`availability.deadline_s` there. No table of the papers contains it.

  fedreid train stragglers[:smoke|nine]
  fedreid train stragglers:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('stragglers', ('fedpav',))
  c.fraction = 0.25
  c.availability.step_s, c.availability.speed_spread = 6.0, 0.7
  c.availability.bandwidth, c.availability.bandwidth_spread = 1e6, 0.7
  c.availability.over_selection = 0.3
  given.apply_preset(c)
  if given.preset in ('synthetic', 'smoke'):
    presets.many_clients(c)
    c.availability.deadline_s = 10.0
  return given.override(c)
