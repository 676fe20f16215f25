"""The guarantee that a run claims, as audits attack it."""

from typing import NamedTuple

from fedreid_jax import errors
from fedreid_jax.config.configuration import Config
from fedreid_jax.data.federation import Federation
from fedreid_jax.method import guarantee
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.method.guarantee import Claim, Draws
from fedreid_jax.training import build, engine


class Claimed(NamedTuple):
  """A guarantee with noise that an audit can repeat."""

  owner: str  # name of the component that claims it
  claim: Claim
  draws: Draws
  guarantee: guarantee.Guarantee
  components: tuple[Component, ...]  # of the run, bound to its participants
  participants: Participants


def of_run(config: Config, federation: Federation) -> Claimed:
  """Returns the guarantee of a run on images that are loaded.

  Raises:
    ConfigError: if the run claims no guarantee, or if its noise cannot be
      repeated.
  """
  people = engine.participants_of(config, federation)
  columns = max(client.num_identities for client in federation.clients)
  model = build.network(config, columns, federation.image_shape)
  unbound = build.load_components(config)
  # The noise that an epsilon chooses depends on all that a client sends.
  people = engine.completed(unbound, people, model)
  components = engine.bound(unbound, people)
  made = guarantee.Guarantee(components, people)
  if made.claim is None:
    raise errors.ConfigError(
      f'{config.name} has no guarantee',
      '--attack',
      'give a run with a component that claims one, as dp_fedavg or dpsgd',
    )
  if made.claim.draws is None:
    raise errors.ConfigError(
      f'{made.owner!r} does not say how its noise is drawn',
      '--attack',
      'give a run without secure aggregation, or a component whose claim has '
      '`draws`',
    )
  return Claimed(
    made.owner, made.claim, made.claim.draws, made, components, people
  )
