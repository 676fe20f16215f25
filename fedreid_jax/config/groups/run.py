"""The fields of a run: its method, its rounds, its tests, its devices."""

import dataclasses
from typing import Annotated, Literal

from fedreid_jax.core.options import Mark, Range
from fedreid_jax.core.plugins import EVALUATOR
from fedreid_jax.core.secret import Origin
from fedreid_jax.evaluation.distances import Metric
from fedreid_jax.evaluation.evaluators import EvaluatorName
from fedreid_jax.evaluation.protocols import Precision, ProtocolName
from fedreid_jax.method.aggregation import BatchStatsRule

SEED = Range(0, 2**31 - 1)
Feature = Literal['embedding', 'feature']
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
  rounds: Annotated[int, Range(1), 'number of communication rounds'] = 20
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
    int,
    Range(0),
    'poisson: largest number of clients in a round, 0 for all clients',
  ] = 0
  batch_stats_rule: Annotated[
    BatchStatsRule, 'aggregation of running statistics'
  ] = 'average'
  checkpoint_every: Annotated[
    int,
    Range(1),
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
    int,
    Range(0),
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


@dataclasses.dataclass(frozen=True)
class Privacy:
  """The origin of the draws that a guarantee of privacy rests on."""

  secret: Annotated[
    Origin,
    'origin of noise, masks and private samples: system draws 256 bits that '
    'the run keeps in a file of its own; seed is for reproducible studies and '
    'protects nobody, because a seed can be guessed',
  ] = 'system'


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """Tests during and after training."""

  every: Annotated[
    int,
    Range(1),
    'rounds between evaluations; the first and last rounds are always '
    'evaluated',
  ] = 5
  validation: Annotated[
    float,
    Range(0, 0.5),
    'fraction of the identities of each training domain that are not trained '
    'on and choose the best round; 0 chooses it by the targets',
  ] = 0.0
  protocol: Annotated[
    Literal['', ProtocolName],
    "evaluation protocol; empty means the target's own",
  ] = ''
  precision: Annotated[
    Literal['', Precision],
    "average precision; empty means the protocol's own",
  ] = ''
  rerank: Annotated[bool, 'use k-reciprocal re-ranking'] = False
  metric: Annotated[Metric, 'distance between features'] = 'euclidean'
  feature: Annotated[
    Feature,
    'ranked feature: after (embedding) or before (feature) the neck',
  ] = 'embedding'
  report_both_neck_features: Annotated[
    bool, 'evaluate the other feature as well'
  ] = False
  batch_stats: Annotated[
    Literal['running', 'source', 'modality'],
    'moments of batch normalisation; source re-estimates them at the tested '
    "weights on the clients' own images, modality on those of the modality of "
    'each test image',
  ] = 'running'
  flip: Annotated[
    bool, "average an image's feature with that of its mirror image"
  ] = False
  ranks: Annotated[
    tuple[int, ...], Range(1), 'ranks of the cumulative match curve'
  ] = (1, 5, 10)
  batch: Annotated[int, Range(1), 'number of images on a device at a time'] = (
    128
  )
  ensemble: Annotated[
    tuple[Literal['concat', 'average'], ...],
    "additional ensembles of the clients' models to evaluate",
  ] = ()
  ensemble_norm: Annotated[
    bool, 'concat: scale the concatenated features to unit length first'
  ] = True
  extra: Annotated[
    tuple[EvaluatorName, ...],
    EVALUATOR,
    'additional evaluators of every target; plug-ins are given by their module '
    'or entry point',
  ] = ()


@dataclasses.dataclass(frozen=True)
class Availability:
  """Simulated time: who can take part, and how long it takes."""

  mean: Annotated[
    float, Range(1e-3, 1), 'mean probability that a client can take part'
  ] = 1.0
  swing: Annotated[
    float,
    Range(0, 1),
    'how far this probability rises and falls over the day of a client',
  ] = 0.0
  file: Annotated[
    str,
    'CSV file of client, from_s and until_s in seconds, instead of a '
    'probability',
  ] = ''
  step_s: Annotated[
    float, Range(0), 'seconds of a local step on the median device'
  ] = 0.0
  speed_spread: Annotated[
    float, Range(0, 5), 'standard deviation of the logarithm of the speed'
  ] = 0.0
  bandwidth: Annotated[
    float,
    Range(0),
    'bytes a second of the median device; 0 means that transfers take no time',
  ] = 0.0
  bandwidth_spread: Annotated[
    float, Range(0, 5), 'standard deviation of the logarithm of the bandwidth'
  ] = 0.0
  deadline_s: Annotated[
    float, Range(0), 'seconds after which a round ends; 0 means no deadline'
  ] = 0.0
  over_selection: Annotated[
    float,
    Range(0, 10),
    'additional clients of a round, as a fraction; the first to arrive are '
    'used',
  ] = 0.0
  in_flight: Annotated[
    int,
    Range(0),
    'fedbuff: clients that train at a time, without rounds',
  ] = 0


@dataclasses.dataclass(frozen=True)
class Execution:
  """Use of devices and memory by a run."""

  deterministic: Annotated[
    bool, 'produce the same bits on 1, 2, 4 and 8 devices'
  ] = True
  width: Annotated[
    int,
    Range(0),
    'number of clients vmapped at a time, 0 means all; values other than 1 are '
    'not deterministic',
  ] = 1
  devices: Annotated[
    int, Range(0), 'number of devices; 0 means at most one per client'
  ] = 0
  store: Annotated[
    Literal['auto', 'memory', 'disk'],
    Mark.REPORTING,
    'states of the clients between rounds: auto keeps them in memory for at '
    'most 1,024 clients and 2 GiB, otherwise in files of the work directory',
  ] = 'auto'
  image_budget_mb: Annotated[
    float,
    Range(0),
    'limit of images on a device in MB; 0 means a quarter of its memory',
  ] = 0.0
  stack_budget_mb: Annotated[
    float,
    Range(0),
    'limit of the uploads of a round in MB, of a method that needs all of '
    'them at once; uploads of other methods are added as clients end',
  ] = 512.0
