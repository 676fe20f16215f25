"""A configuration as typed values: its own fields and those of every group.

A group is declared beside the code that reads it, and the fields of a component
beside its `make`. Recipes edit a ConfigDict of the same names.
"""

import dataclasses
from typing import Annotated, Literal

from fedreid_jax.core.options import SEED, Mark, Natural, Positive, Range
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


# The groups by name, in the order of `--help`.
GROUPS = {
  declaration.__name__.lower(): declaration
  for declaration in (
    *(Data, Model, Local, Optim, Loss, Augment, Evaluation),
    *(Execution, Availability, Privacy),
  )
}
