"""DP-SGD (Abadi et al., CCS 2016): differential privacy of every identity.

Every client adds noise to the clipped gradients of its identities, so that
nothing that leaves it depends much on one person. `dpsgd.epsilon` is that of
all rounds; the run prints the guarantee, and results.json has it. It needs
fedreid_jax[privacy]. No table of the papers contains it.

  python -m launchers.main --config=configs/dpsgd.py[:smoke|synthetic]
  python -m launchers.main --config=configs/dpsgd.py:photos,data.root=DIR

The networks start from public weights, whose statistics stay frozen, and the
neck and the classifiers are trained: noise on few parameters is smaller. The
preset paper trains another network, with group normalisation and from random
weights, unless `model.pretrained` and `model.norm=frozen` are given.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('dpsgd', ('fedpav', 'dpsgd'))
  given.apply_preset(c)
  c.local.sampler, c.local.steps = 'poisson_pk', 20
  c.local.batch, c.local.identities = 32, 8
  c.dpsgd.epsilon = 8.0
  c.model.neck = 'bnneck'
  if c.model.name == 'convnet' and c.data.channels == 'rgb':
    presets.from_public_weights(c)
    c.dpsgd.trainable = 'params/(neck|classifier)/'
  else:
    c.model.norm = 'group'
  return given.override(c)
