"""The interface of a federated method.

A component in another package needs nothing else of `fedreid_jax`:

  import fedreid_jax.method as method

  def make(options: Options = Options()) -> method.Component: ...

A configuration finds it by the name of its module, or by an entry point of the
group `fedreid_jax.components`.
"""

from fedreid_jax.core.options import Checked, Mark, Range, Regex
from fedreid_jax.core.trees import split, trainable
from fedreid_jax.core.types import (
  Array,
  Batch,
  Broadcast,
  ClientData,
  ClientTask,
  Flat,
  Metrics,
  Model,
  Outputs,
  Tree,
  Upload,
)
from fedreid_jax.method.accounting import Mechanism, Released
from fedreid_jax.method.aggregation import normalise, uniform, valid_uploads
from fedreid_jax.method.component import (
  MODEL,
  ClientHooks,
  Component,
  DataPass,
  DomainStatistics,
  Participants,
  Property,
  ServerHooks,
  Summation,
  Transport,
  broadcast_state,
  replace_rows,
)
from fedreid_jax.method.contexts import (
  AggregationCtx,
  GradientCtx,
  LossCtx,
  ReceiveCtx,
  RoundCtx,
  RoundEndCtx,
  ServerCtx,
  ServerInitCtx,
  StepCtx,
  UploadCtx,
)
from fedreid_jax.method.guarantee import Claim, Draws
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.method.sums import (
  BY_IMAGES,
  UNIFORM,
  Divisor,
  Gather,
  MessageSum,
  Sum,
  Weighted,
  by_count,
  by_share,
  by_size,
)

__all__ = [
  'BY_IMAGES',
  'MODEL',
  'UNIFORM',
  'AggregationCtx',
  'Array',
  'Batch',
  'Broadcast',
  'Checked',
  'Claim',
  'ClientData',
  'ClientHooks',
  'ClientTask',
  'Component',
  'DataPass',
  'Divisor',
  'DomainStatistics',
  'Draws',
  'Flat',
  'Gather',
  'Given',
  'GradientCtx',
  'LossCtx',
  'Mark',
  'Mechanism',
  'MessageSum',
  'Metrics',
  'Model',
  'Outputs',
  'Participants',
  'Property',
  'Range',
  'ReceiveCtx',
  'Regex',
  'Released',
  'RoundCtx',
  'RoundEndCtx',
  'Rule',
  'ServerCtx',
  'ServerHooks',
  'ServerInitCtx',
  'StepCtx',
  'Sum',
  'Summation',
  'Transport',
  'Tree',
  'Upload',
  'UploadCtx',
  'Weighted',
  'broadcast_state',
  'by_count',
  'by_share',
  'by_size',
  'normalise',
  'replace_rows',
  'split',
  'trainable',
  'uniform',
  'valid_uploads',
]
