"""Camera bias: how often the nearest images are of the query's own camera.

Features that describe the background find images of the same camera, whoever
they show. `same_camera` is the share of such images among the nearest ones of a
query, the mean over queries and trials in percent; `same_camera_in_gallery` is
their share in the whole gallery, which features without a bias reach.
"""

import dataclasses
from typing import Annotated

import numpy as np

from fedreid_jax.core.options import Checked, Range
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation.distances import squared_blocks
from fedreid_jax.evaluation.features import Model
from fedreid_jax.evaluation.options import Every


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of the evaluator."""

  nearest: Annotated[int, Range(1), 'number of nearest images of a query'] = 1
  every: Every = 1


def evaluate(
  model: Model, target: Target, options: Options = Options()
) -> dict[str, float]:
  """Returns the two shares on a target."""
  features, cameras = model.features(target), target.images.cameras
  near: list[float] = []
  all_: list[float] = []
  for trial in target.trials:
    blocks = squared_blocks(
      features[trial.query], features[trial.gallery], model.config.metric
    )
    nearest = np.argsort(np.concatenate([*blocks]), axis=1, kind='stable')
    same = cameras[trial.query][:, None] == cameras[trial.gallery][None]
    first = nearest[:, : options.nearest]
    near.append(float(np.take_along_axis(same, first, axis=1).mean()))
    all_.append(float(same.mean()))
  return {
    'same_camera': 100 * float(np.mean(near)),
    'same_camera_in_gallery': 100 * float(np.mean(all_)),
  }
