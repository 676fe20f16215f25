"""DP-FedAvg (McMahan et al., ICLR 2018): differential privacy of every client.

A guarantee for whole clients needs many of them: the synthetic presets divide
one domain over 100 clients, each of which takes part in a round with the
probability 0.2. `dp_fedavg.epsilon` is that of all rounds; the run prints the
guarantee, and results.json has it. docs/privacy.md lists what is not covered,
such as losses and, without `secagg`, the rounding of float32 noise. It needs
fedreid_jax[privacy]. No table of the papers contains it.

  fedreid train dp_fedavg[:smoke|synthetic]
  fedreid train dp_fedavg:photos,data.root=DIR

With other presets, clients that are fewer than `dp_fedavg.min_clients` are
refused. Images are normalised by groups of channels, or with public weights by
the statistics of these weights: those of a batch depend on clients' images, and
have no noise.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('dp_fedavg', ('fedpav', 'dp_fedavg'))
  given.apply_preset(c)
  c.cohort, c.fraction = 'poisson', 0.2
  c.batch_stats_rule = 'keep_server'
  c.model.norm = 'frozen' if c.model.pretrained else 'group'
  c.dp_fedavg.epsilon = 8.0
  if given.preset in ('synthetic', 'smoke'):
    c.data.sources, c.data.client_split = ('plaza',), 'iid'
    c.data.num_clients, c.data.identities = 100, 100
  return given.override(c)
