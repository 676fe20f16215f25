"""DFH with differential privacy of every identity.

DP-SGD adds noise to the gradients of a client (recipe `dpsgd`), and DFH adds
noise to its statistics. `dpsgd.epsilon` is that of both together after all
rounds: it chooses the noise of DP-SGD for a given `dfh.noise`; the run prints
the guarantee. docs/privacy.md lists what is not covered, such as losses and the
rounding of float32 noise. It needs fedreid_jax[privacy]. No table of the papers
contains it.

  fedreid train dfh_dp[:smoke|synthetic]
  fedreid train dfh_dp:photos,data.root=DIR

The loss on hallucinated features is the cross-entropy, and features are
normalised by the statistics that the client has released, so that it is a
function of single images. As in the recipe `dpsgd`, the networks start from
public weights and the neck and the classifiers are trained.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.GENERALISED)
  c = presets.base('dfh_dp', ('fedpav', 'dfh', 'dpsgd'))
  given.apply_preset(c)
  presets.identities_private(c)
  c.dfh.space, c.dfh.moments = 'b', 'means'
  c.dfh.loss, c.dfh.normalise = 'identity', 'released'
  c.dfh.clip, c.dfh.noise, c.dfh.every = 3.0, 2.0, 0
  return given.override(c)
