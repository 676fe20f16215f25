"""FedAvg: every leaf travels, the identity classifier too.

McMahan et al., Communication-efficient learning of deep networks from
decentralized data, AISTATS 2017, Algorithm 1: with n_k images at client k,

  w = sum_{k in S} (n_k / sum_{j in S} n_j) w_k.

Clients of re-identification have different identities, so a classifier can only
be averaged in one label space, `config.data.labels`: 'concat' numbers all
clients' identities one after another (DFH, L2RW), 'max' has as many columns as
the largest client has identities and lets different people share one (Wu &
Gong), 'global' numbers the persons themselves.

With one epoch a round and all clients it is what Wu & Gong call FedSGD. McMahan
et al.'s FedSGD, one server step a round with the gradient of all images, is the
same component with `config.local.accumulate`.

Deviations from the paper: weights are renormalised over the cohort.
Deviations from released code: none is the reference.
"""

from fedreid_jax import errors
from fedreid_jax.core.component import Component, ComponentInfo, Participants


def make() -> Component:
  """Builds the component."""

  def check(participants: Participants) -> None:
    spaces = {c.num_identities for c in participants.clients}
    if len(spaces) > 1:
      raise errors.ConfigError(
        'a classifier travels, but clients number their identities differently',
        'data.labels',
        "set it to 'concat', 'max' or 'global', or share with 'fedpav'",
      )

  return Component('fedavg', shared='', info=ComponentInfo(check=check))
