"""Byzantine clients: some clients send wrong parameters on purpose.

A third of the clients send their update with the opposite sign, and the server
averages (FedPav). `rule` selects robust aggregation instead, and
`byzantine.kind` another attack. No table of the papers contains it.

  fedreid train byzantine[:smoke|nine]
  fedreid train byzantine:nine,rule=median
  fedreid train byzantine:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,rule=RULE][,key=value...]`."""
  rules = ('mean', *parsing.choices('robust.rule'))
  given = parsing.argument(arg, presets.FEDERATED, rule=rules)
  rule = given.options['rule']
  robust = () if rule == 'mean' else ('robust',)
  c = presets.base('byzantine', ('fedpav', *robust, 'byzantine'))
  given.apply_preset(c)
  c.byzantine.share = 0.34
  c.robust.f = 3 if len(c.data.sources) == 9 else 1
  if robust:
    c.robust.rule = rule
  return given.override(c)
