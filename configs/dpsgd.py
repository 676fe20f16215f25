"""DP-SGD (Abadi et al., CCS 2016): differential privacy of every identity.

Every client adds noise to the clipped gradients of its identities, so that the
models and messages that it sends depend little on one person; docs/privacy.md
lists what is not covered, such as losses and the rounding of float32 noise.
`dpsgd.epsilon` is that of all rounds; the run prints the guarantee, and
results.json has it. It needs fedreid_jax[privacy]. No table of the papers
contains it.

  fedreid train dpsgd[:smoke|synthetic]
  fedreid train dpsgd:photos,data.root=DIR

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
