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
  presets.identities_private(c)
  return given.override(c)
