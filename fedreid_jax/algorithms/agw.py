"""AGW: non-local blocks in the network.

Ye, Shen, Lin, Xiang, Shao and Hoi, Deep Learning for Person Re-identification:
A Survey and Outlook, TPAMI 2022. A block after each of the last two blocks of
stage 2 and the last three of stage 3 adds to the maps x at the position i

  BN(W_w y_i),  y_i = 1/P sum_j (theta(x_i) . phi(x_j)) g(x_j),

over the P positions j (`models.layers.inserted.NonLocal`). The scale of BN
starts at 0. The other parts of AGW are fields: `model.pool='gem'`,
`model.neck='bnneck'` and `loss.weighted_triplet`.

Deviations from the paper: none in the equations. Deviations from the released
code: none; its non-local blocks have one inner channel as well.
"""

from flax import linen as nn

from fedreid_jax.method.component import Component
from fedreid_jax.models import changes
from fedreid_jax.models.layers import inserted


def make() -> Component:
  """Builds the component, which has no hooks: it changes the network."""
  return Component('agw', network=_network)


def _network(network: nn.Module) -> nn.Module:
  rule = inserted.after_last_blocks(dtype=changes.dtype(network))
  return changes.insert(network, rule, 'agw', resnet_only=True)
