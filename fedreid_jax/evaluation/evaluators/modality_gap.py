"""Distance between the visible and the infrared features of the same persons.

With `v_p` and `i_p` the mean feature of person `p` in the visible and in the
infrared images, the common offset of the modalities and the spread of persons
within a modality are

  offset = |mean_p (v_p - i_p)|
  spread = sqrt(mean_p (|v_p - mean v|^2 + |i_p - mean i|^2) / 2)
  rest   = sqrt(mean_p |v_p - i_p - mean (v - i)|^2)

An offset moves all queries by the same vector, so that they find the images of
the gallery in its direction, irrespective of the person. Moments of batch
normalisation that fit neither modality cause an offset. `rest` is the remaining
distance: 0 if both modalities have the same features up to the offset, and
sqrt(2) spread if they are independent.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedreid_jax.core.options import Checked
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation.features import Model
from fedreid_jax.evaluation.options import Every


class Gap(NamedTuple):
  """Distances between the modalities in units of the spread of persons."""

  offset: float
  rest: float
  persons: int  # with images of both modalities


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of the distance of modalities."""

  every: Every = 1


def evaluate(
  model: Model, target: Target, options: Options = Options()
) -> dict[str, float | int]:
  """Fields of `Gap` as `gap_NAME`; {} if `measure` finds none."""
  del options
  own = target.images
  gap = measure(
    model.features(target),
    own.identities,
    own.modalities,
    unit=model.config.metric == 'cosine',
  )
  found = gap._asdict() if gap else {}
  return {f'gap_{name}': value for name, value in found.items()}


def measure(
  features: Float[np.ndarray, 'M D'],
  identities: Int[np.ndarray, ' M'],
  modalities: Int[np.ndarray, ' M'],
  unit: bool = False,
) -> Gap | None:
  """Measures the gap, None with fewer than two persons in both modalities.

  `modalities` are 0 visible, 1 infrared. `unit` scales features to unit length,
  as the cosine distance does.
  """
  persons = np.intersect1d(
    identities[modalities == 0], identities[modalities == 1]
  )
  persons = persons[persons >= 0]
  if len(persons) < 2:
    return None
  x = np.asarray(features, np.float64)
  if unit:
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
  visible, infrared = (
    np.stack(
      [x[(identities == p) & (modalities == kind)].mean(0) for p in persons]
    )
    for kind in (0, 1)
  )
  difference = visible - infrared
  spread = np.sqrt((_variance(visible) + _variance(infrared)) / 2)
  spread = max(float(spread), 1e-12)
  return Gap(
    offset=float(np.linalg.norm(difference.mean(0))) / spread,
    rest=float(np.sqrt(_variance(difference))) / spread,
    persons=len(persons),
  )


def _variance(x: Float[np.ndarray, 'P D']) -> float:
  """Mean squared distance of rows from their mean."""
  return float(((x - x.mean(0)) ** 2).sum(axis=1).mean())
