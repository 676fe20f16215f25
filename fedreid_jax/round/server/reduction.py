"""Whether the uploads of a round are stacked or streamed."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from fedreid_jax import errors
from fedreid_jax.method.component import Component

Reduction = Literal['auto', 'stacked', 'stream']
FIELD, BUDGET = 'execution.reduction', 'execution.stack_budget_mb'
MB = 2**20


class Choice(NamedTuple):
  """How the uploads of a round are reduced.

  Attributes:
    streams: whether they are added to sums as soon as a client has trained.
    uploads: number of uploads of a round, `K`.
    model_bytes: bytes of the shared parameters of one upload.
    exact: whether streamed sums are in fixed point.
  """

  streams: bool
  uploads: int
  model_bytes: int
  exact: bool

  @property
  def name(self) -> str:
    """Returns the value of `execution.reduction` that chooses this."""
    return 'stream' if self.streams else 'stacked'

  def describe(self) -> str:
    """Returns one line on the reduction and its memory."""
    size = f'{self.uploads} uploads of {self.model_bytes / MB:.3g} MB'
    if not self.streams:
      total = self.uploads * self.model_bytes / MB
      return f'reduction: stacked, {size} are {total:.3g} MB'
    sums = 'fixed-point' if self.exact else 'float32'
    return f'reduction: stream, {size} are added to {sums} sums'


def needing_uploads(components: Sequence[Component], exact: bool) -> list[str]:
  """Returns why a method cannot stream, a clause for each component.

  Args:
    components: components of the method.
    exact: whether sums would be in fixed point (deterministic mode).
  """
  found = []
  for component in components:
    rule, name = component.aggregation, component.name
    if component.info.needs_uploads:
      found.append(f'component {name!r} needs all uploads at once')
    elif component.transport and component.transport.collude:
      found.append(f'component {name!r} changes all uploads together')
    elif component.summation:
      found.append(f'component {name!r} masks all uploads together')
    elif component.clustering:
      found.append(f'component {name!r} clusters all uploads')
    elif rule and (rule.raw is None or rule.combine):
      found.append(f'the weights of {name!r} need all uploads at once')
    elif rule and exact and rule.bound is None:
      found.append(f'the sums of {name!r} are not exact in any order')
  return found


def choose(
  wanted: Reduction,
  components: Sequence[Component],
  uploads: int,
  model_bytes: int,
  budget_mb: float,
  exact: bool,
) -> Choice:
  """Returns how the uploads of a round are reduced.

  The choice does not depend on the devices, so results do not either.

  Args:
    wanted: `execution.reduction`.
    components: components of the method.
    uploads: number of uploads of a round, `K`.
    model_bytes: bytes of the shared parameters of one upload.
    budget_mb: limit of `K` uploads in MB, `execution.stack_budget_mb`.
    exact: whether streamed sums are in fixed point (deterministic mode).

  Raises:
    ConfigError: if a method that cannot stream should.
    ResourceError: if it cannot stream and its uploads exceed the budget.
  """
  needing = needing_uploads(components, exact)
  chosen = Choice(False, uploads, model_bytes, exact)
  if wanted == 'stream' and needing:
    raise errors.ConfigError(
      f'{needing[0]}, which a streamed round does not keep',
      FIELD,
      "set it to 'auto' or 'stacked'" + _inexact(needing[0]),
    )
  total = uploads * model_bytes / MB
  fits = total <= budget_mb
  if wanted == 'auto' and needing and not fits:
    raise errors.ResourceError(
      f'{needing[0]}: {uploads} uploads of {model_bytes / MB:.3g} MB are '
      f'{total:.4g} MB on a device, more than {budget_mb:g}, and take about '
      'twice that while they are combined',
      BUDGET,
      f'set it to {math.ceil(total)} or more if the memory suffices, or lower '
      'fraction' + _inexact(needing[0]),
    )
  streams = wanted == 'stream' or (wanted == 'auto' and not fits)
  return chosen._replace(streams=streams)


def _inexact(clause: str) -> str:
  """Returns one more remedy for a method that streams in float32."""
  exact = clause.endswith('order')
  return ', or set execution.deterministic=False' if exact else ''
