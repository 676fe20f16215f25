"""FedPav on clients that take part at certain hours of the day.

The synthetic presets divide one domain over 40 clients. A client is available
40 % of the time on average: with a probability of 0.8 at its own best hour of
the day and of 0 twelve hours later. A step takes two hours of simulated time,
so that 20 rounds cover more than a day. A round wants half of the clients and
takes those that are there. No table of the papers contains it.

  fedreid train availability[:smoke|nine]
  fedreid train availability:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('availability', ('fedpav',))
  c.fraction = 0.5
  c.availability.mean, c.availability.swing = 0.4, 0.4
  c.availability.step_s = 7200.0
  given.apply_preset(c)
  if given.preset in ('synthetic', 'smoke'):
    presets.many_clients(c)
  return given.override(c)
