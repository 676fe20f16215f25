"""Fed-Protoid (Rami et al., ECCV 2024): cameras that adapt a source's model.

Every camera of the target is a client without labels, and the source is one
client with labels at the server. `start_from` is a run that was trained on the
source; the preset `rendered` starts from published weights instead.

  fedreid train fedpav:synthetic,data.sources=("plaza",),model.neck=bnneck \
    --workdir=runs/source
  fedreid train fed_protoid --config.start_from=runs/source
  fedreid train fed_protoid:smoke
  fedreid train fed_protoid:paper,data.root=DIR --config.start_from=RUN
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.ADAPTED)
  c = presets.base('fed_protoid', ('fedpav', 'fed_protoid'))
  c.model.neck = 'bnneck'
  given.apply_preset(c)
  c.optim.name, c.optim.lr, c.optim.weight_decay = 'adam', 3.5e-4, 5e-4
  c.optim.schedule, c.optim.milestones = 'constant', ()
  if c.data.source.startswith('synthetic'):
    # A camera has 12 steps in a round, where one of Market-1501 has 125: with
    # the published decay its teacher would hardly move.
    c.local.batch, c.fed_protoid.decay = 16, 0.9
    # A camera has 4 images of a person.
    c.fed_protoid.k1, c.fed_protoid.k2 = 10, 3
    c.fed_protoid.min_samples = 2
  return given.override(c)
