"""FedAvg: all parameters are shared, including the identity classifier.

McMahan et al., Communication-efficient learning of deep networks from
decentralized data, AISTATS 2017, Algorithm 1: with n_k images at client k,

  w = sum_{k in S} (n_k / sum_{j in S} n_j) w_k.

In re-identification clients have different identities, so a classifier can only
be averaged in one label space, `config.data.labels`: 'concat' numbers the
identities of all clients consecutively (DFH, L2RW), 'max' has as many columns
as the largest client has identities, so that different persons share a column
(Wu & Gong), 'global' gives every person one number at all clients.

With one epoch per round and all clients, this is the method that Wu & Gong call
FedSGD. FedSGD of McMahan et al., with one server step per round along the
gradient of all images, is the same component with `config.local.accumulate`.

Deviations from the paper: weights are renormalised over the cohort. Deviations
from released code: no implementation is taken as the reference.
"""

from collections.abc import Iterator

from fedreid_jax import errors
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.method.rules import Given, Rule, numbers_own_labels


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield (
    numbers_own_labels(given.config),
    'data.labels',
    'the classifier is shared, but clients number their own identities',
    "set it to 'concat', 'max' or 'global', or use 'fedpav'",
  )


def make() -> Component:
  """Builds the component."""

  def check(participants: Participants) -> None:
    spaces = {c.num_identities for c in participants.clients}
    if len(spaces) > 1:
      raise errors.ConfigError(
        'the classifier is shared, but the clients number their identities '
        'differently',
        'data.labels',
        "set it to 'concat', 'max' or 'global', or use 'fedpav'",
      )

  return Component('fedavg', shared='', bind=check)
