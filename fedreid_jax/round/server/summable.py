"""Which components a server can run that learns sums only."""

from collections.abc import Sequence

from fedreid_jax import errors
from fedreid_jax.method.component import Component
from fedreid_jax.method.sums import Summed
from fedreid_jax.round.server import reduction


def check(components: Sequence[Component], adder: Component) -> None:
  """Refuses components for which sums do not suffice.

  Args:
    components: of the method.
    adder: the component that fills `summation`.

  Raises:
    ConfigError: for the first of them; the message says why.
  """
  for other in components:
    reason = other is not adder and _needs_more(other)
    if reason:
      raise errors.ConfigError(
        f'{reason}, but {adder.name!r} gives the server sums only',
        'components',
        f'remove {other.name!r} or {adder.name!r}',
      )


def _needs_more(other: Component) -> str:
  """Returns why sums do not suffice, empty if they do."""
  name, rule = other.name, other.aggregation
  client, server, transport = other.client, other.server, other.transport
  if needing := reduction.needing_uploads([other], exact=False):
    return needing[0]
  if transport and transport.moves:
    return f'clients of {name!r} start from models of different rounds'
  if rule and rule.weights and not rule.divisor:
    return f'the weights of {name!r} do not follow from sums'
  if rule and rule.exponential:
    return f'the weights of {name!r} are exponentials'
  if rule and not rule.bound:
    return f'the weights of {name!r} have no bound'
  if server and server.receive and not isinstance(server.receive, Summed):
    return f'the server of {name!r} receives single messages'
  if client and client.data_pass and client.data_pass.before_first_round:
    return f'clients of {name!r} send messages before the first round'
  if transport and transport.size:
    return f'{name!r} compresses single uploads'
  return ''
