"""Whether the server needs all uploads of a round at once, and their memory."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedreid_jax import errors
from fedreid_jax.method.component import Component, early
from fedreid_jax.method.sums import Gather, MessageSum

BUDGET = 'execution.stack_budget_mb'
MB = 2**20


class Uploads(NamedTuple):
  """The uploads of a round.

  Attributes:
    gathered: why all of them are on the devices at once, '' if they are added
      as clients end.
    number: number of uploads, `K`.
    model_bytes: bytes of the shared parameters of one upload.
    exact: whether sums are in fixed point.
  """

  gathered: str
  number: int
  model_bytes: int
  exact: bool

  @property
  def name(self) -> str:
    """Returns 'gather' or 'sum', for the description of a run."""
    return 'gather' if self.gathered else 'sum'

  def describe(self) -> str:
    """Returns a line for users about the uploads and their memory."""
    size = f'{self.number} of {self.model_bytes / MB:.3g} MB'
    if self.gathered:
      total = self.number * self.model_bytes / MB
      return f'uploads: {size} are gathered, {total:.3g} MB: {self.gathered}'
    sums = 'fixed-point' if self.exact else 'float32'
    return f'uploads: {size} are added to {sums} sums'


def reason(components: Sequence[Component]) -> str:
  """Returns why a method needs all uploads at once, '' if sums suffice.

  The reason is a text for users about the first such component.
  """
  return next(filter(None, map(_reason, components)), '')


def _reason(component: Component) -> str:
  name = component.name
  if 'needs_uploads' in component.properties:
    return f'component {name!r} needs all uploads at once'
  if component.transport and component.transport.collude:
    return f'component {name!r} changes all uploads together'
  if component.clustering:
    return f'component {name!r} clusters all uploads'
  if isinstance(component.aggregation, Gather):
    return f'the rule of {name!r} needs all uploads at once'
  return ''


def is_by_coordinate(components: Sequence[Component]) -> bool:
  """Returns whether every value of the uploads is combined on its own."""
  rules = [c.aggregation for c in components if _reason(c)]
  # An update may add values of a model, whose sum would depend on the devices.
  updated = any(c.server and c.server.update for c in components)
  alone = len(rules) == 1 and not updated
  return alone and isinstance(rules[0], Gather) and rules[0].by_coordinate


def of_round(
  components: Sequence[Component],
  number: int,
  model_bytes: int,
  budget_mb: float,
  exact: bool,
  part_bytes: int | None = None,
) -> Uploads:
  """Returns the uploads of a round.

  Args:
    budget_mb: limit of gathered uploads in MB, `execution.stack_budget_mb`.
    exact: whether sums are in fixed point (deterministic mode).
    part_bytes: bytes of an upload that a device has if each value is combined
      on its own, None for all.

  Raises:
    ResourceError: if uploads are gathered and exceed the budget.
  """
  gathered = reason(components)
  # A sum of masked uploads is simulated with all of them on a device.
  for component in components:
    if component.summation and not gathered:
      gathered = f'component {component.name!r} masks all uploads together'
  total = number * model_bytes / MB
  # Otherwise every device has all of them, so that more devices do not help.
  if part_bytes is not None and is_by_coordinate(components):
    total = number * part_bytes / MB
  if gathered and total > budget_mb:
    raise errors.ResourceError(
      f'{gathered}: {number} uploads of {model_bytes / MB:.3g} MB are '
      f'{total:.4g} MB on a device, more than {budget_mb:g}, and take about '
      'twice that while they are combined',
      BUDGET,
      f'set it to {math.ceil(total)} or more if the memory suffices, or lower '
      'fraction',
    )
  return Uploads(gathered, number, model_bytes, exact)


def check_sums(components: Sequence[Component], adder: Component) -> None:
  """Refuses components for which the sums of a `Summation` do not suffice.

  Raises:
    ConfigError: if there is such a component; the message says why sums do not
      suffice.
  """
  for other in components:
    found = other is not adder and (_reason(other) or _needs_more(other))
    if found:
      raise errors.ConfigError(
        f'{found}, but {adder.name!r} gives the server sums only',
        'components',
        f'remove {other.name!r} or {adder.name!r}',
      )


def _needs_more(other: Component) -> str:
  """Returns why the sums of one round do not suffice, '' if they do."""
  name, server, transport = other.name, other.server, other.transport
  if 'rebased_uploads' in other.properties:
    return f'clients of {name!r} start from models of different rounds'
  if server and server.receive and not isinstance(server.receive, MessageSum):
    return f'the server of {name!r} receives single messages'
  if early(other):
    return f'clients of {name!r} send messages before the first round'
  if transport and transport.size:
    return f'{name!r} compresses single uploads'
  return ''
