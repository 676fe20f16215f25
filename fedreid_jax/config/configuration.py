"""A configuration as typed values: its own fields and those of every group.

A group is declared beside the code that reads it, and the fields of a component
beside its `make`. Recipes edit a ConfigDict of the same names, and `validate`
returns the frozen `Config`.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fedreid_jax.core.options import (
  SEED,
  Mark,
  Natural,
  Positive,
  Range,
  fields,
)
from fedreid_jax.core.secret import Privacy
from fedreid_jax.data.augment import Augment
from fedreid_jax.data.options import Data
from fedreid_jax.data.sampling import Local
from fedreid_jax.evaluation.options import Evaluation
from fedreid_jax.losses.objective import Loss
from fedreid_jax.method.aggregation import BatchStatsRule
from fedreid_jax.method.optimizers import Optim
from fedreid_jax.models.options import Model
from fedreid_jax.round.settings import Execution
from fedreid_jax.round.timetable import Availability

ClientMetrics = Literal['auto', 'lines', 'files']
CheckpointsKept = Literal['newest', 'all']
Tracker = Literal['csv', 'tensorboard', 'mlflow', 'wandb']


@dataclasses.dataclass(frozen=True)
class Run:
  """The method and its rounds."""

  name: Annotated[
    str, 'name of the recipe, part of the default work directory'
  ] = 'run'
  components: Annotated[
    tuple[str, ...],
    'components of the method, in order; plug-ins are given by their module or '
    'entry point',
  ] = ('fedpav',)
  seed: Annotated[
    int, SEED, 'random seed of models, batches, augmentation and cohorts'
  ] = 0
  rounds: Annotated[Positive, 'number of communication rounds'] = 20
  fraction: Annotated[
    float,
    Range(1e-9, 1),
    'fraction of the clients in a round; their number is rounded up',
  ] = 1.0
  cohort: Annotated[
    Literal['fixed', 'poisson'],
    'sampling of the clients of a round: as many as fraction says, or each '
    'with the probability fraction',
  ] = 'fixed'
  cohort_max: Annotated[
    Natural, 'poisson: largest number of clients in a round, 0 for all clients'
  ] = 0
  batch_stats_rule: Annotated[
    BatchStatsRule, 'aggregation of running statistics'
  ] = 'average'
  checkpoint_every: Annotated[
    Positive,
    'rounds between checkpoints; the last round and signals also save one',
  ] = 5
  checkpoints_kept: Annotated[
    CheckpointsKept,
    Mark.REPORTING,
    'checkpoints that stay: the newest two and the best (newest), or also all '
    'that are saved with this value (all), from which `fedreid forget` can '
    'repeat rounds',
  ] = 'newest'
  start_from: Annotated[
    str, 'work directory of a run whose last models initialise this run'
  ] = ''
  track: Annotated[
    tuple[Tracker, ...],
    Mark.REPORTING,
    'trackers that receive the metrics and ranked lists, beside metrics.jsonl',
  ] = ()
  track_images: Annotated[
    Natural,
    Mark.REPORTING,
    'number of queries of each target whose ranked lists the trackers receive '
    'as images',
  ] = 4
  client_metrics: Annotated[
    ClientMetrics,
    Mark.REPORTING,
    'metrics of each client: in metrics.jsonl and in trackers (lines) or in '
    'client-metrics/ROUND.npz (files); auto writes lines for at most 16 '
    'clients in a round, and only a summary for more',
  ] = 'auto'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Run):
  """A validated configuration.

  A group is handed to the code that declares it; fields are replaced with
  `dataclasses.replace`, and `validate` checks the result.

  Attributes:
    options: `Options` of the built-in components and networks, and of the
      plug-ins that the configuration names, by the name of their group.
  """

  data: Data
  model: Model
  local: Local
  optim: Optim
  loss: Loss
  augment: Augment
  evaluation: Evaluation
  execution: Execution
  availability: Availability
  privacy: Privacy
  options: Mapping[str, Any]


OWN = tuple(field.name for field in dataclasses.fields(Run))
# The groups by name, in the order of `--help`.
GROUPS: dict[str, type] = {
  name: kind
  for name, kind in typing.get_type_hints(Config).items()
  if name not in (*OWN, 'options')
}


def frozen(config: Any, declarations: Mapping[str, Any]) -> Config:
  """Returns the values of a ConfigDict whose fields all have been checked.

  Args:
    declarations: of every group, as `schema.groups`.
  """

  def values(declaration: Any, given: Any) -> dict[str, Any]:
    # A whole number in place of a float would have another digest.
    return {
      field.name: float(given[field.name])
      if field.kind is float
      else given[field.name]
      for field in fields(declaration)
    }

  made: dict[str, Any] = {
    name: declaration(**values(declaration, config[name]))
    for name, declaration in declarations.items()
    if name
  }
  own = values(Run, config)
  own |= {name: made.pop(name) for name in GROUPS}
  return Config(**own, options=made)
