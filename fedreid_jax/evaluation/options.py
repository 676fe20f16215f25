"""The fields of `evaluation`: tests during and after training."""

import dataclasses
from typing import Annotated, Literal

from fedreid_jax.core.options import Natural, Positive, Range, Share
from fedreid_jax.core.plugins import EVALUATOR
from fedreid_jax.core.types import Feature
from fedreid_jax.data import protocols
from fedreid_jax.data.protocols import Precision, Protocol, ProtocolName
from fedreid_jax.evaluation.distances import Metric
from fedreid_jax.evaluation.evaluators import EvaluatorName

# The type of the option `every` that any evaluator of `extra` may have.
Every = Annotated[
  Natural,
  'evaluations of a run for one of this evaluator: 2 is every second, from the '
  'one before training, and always the one after all rounds; 0 is that alone',
]


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """Tests during and after training."""

  every: Annotated[
    Positive,
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
    Literal['', Precision], "average precision; empty means the protocol's own"
  ] = ''
  rerank: Annotated[bool, 'use k-reciprocal re-ranking'] = False
  metric: Annotated[Metric, 'distance between features'] = 'euclidean'
  feature: Annotated[
    Feature, 'ranked feature: after (embedding) or before (feature) the neck'
  ] = 'embedding'
  report_both_neck_features: Annotated[
    bool, 'evaluate the other feature as well'
  ] = False
  batch_stats: Annotated[
    Literal['running', 'source', 'modality', 'target', 'stream'],
    'moments of batch normalisation; source re-estimates them at the tested '
    "weights on the clients' own images, modality on those of the modality of "
    'each test image, target on the gallery of the target, and stream in the '
    'order of the gallery',
  ] = 'running'
  moments_batch: Annotated[
    int,
    Range(2),
    'target, stream: number of gallery images whose moments are measured at a '
    'time',
  ] = 64
  moments_momentum: Annotated[
    Share,
    'stream: weight of the moments of these images; those before have the rest',
  ] = 0.1
  camera_norm: Annotated[
    Literal['', 'centre', 'standardise'],
    'features of a target without the mean of those of their camera, and '
    '(standardise) with the same standard deviation for all cameras; then of '
    'length 1',
  ] = ''
  flip: Annotated[
    bool, "average an image's feature with that of its mirror image"
  ] = False
  ranks: Annotated[
    tuple[int, ...], Range(1), 'ranks of the cumulative match curve'
  ] = (1, 5, 10)
  batch: Annotated[Positive, 'number of images on a device at a time'] = 128
  ensemble: Annotated[
    tuple[Literal['concat', 'average'], ...],
    "additional ensembles of the clients' models to evaluate",
  ] = ()
  ensemble_norm: Annotated[
    bool, 'concat: scale the concatenated features to unit length first'
  ] = True
  extra: Annotated[
    tuple[EvaluatorName | str, ...],
    EVALUATOR,
    'additional evaluators of every target; plug-ins are given by their module '
    'or entry point',
  ] = ()


def protocol_of(config: Evaluation, own: str) -> tuple[str, Protocol]:
  """Returns the name and the rules of the protocol of a retrieval test.

  Fields of `config.evaluation` that are set take precedence over the target's
  `own` protocol, '' for none.
  """
  name = config.protocol or own or 'market'
  rules = protocols.get(name)
  if config.precision:
    rules = rules._replace(precision=config.precision)
  return name, rules
