"""Rounds of pfl's simulation, a contender of `benchmarks.thousand_clients`."""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from pfl.aggregate.simulate import (  # pyright: ignore
  SimulatedBackend,
)
from pfl.aggregate.weighting import WeightByDatapoints  # pyright: ignore
from pfl.algorithm.base import NNAlgorithmParams  # pyright: ignore
from pfl.algorithm.federated_averaging import (  # pyright: ignore
  FederatedAveraging,
)
from pfl.callback.base import TrainingProcessCallback  # pyright: ignore
from pfl.data.dataset import Dataset  # pyright: ignore
from pfl.data.federated_dataset import FederatedDataset  # pyright: ignore
from pfl.hyperparam.base import (  # pyright: ignore
  NNEvalHyperParams,
  NNTrainHyperParams,
)
from pfl.metrics import Metrics  # pyright: ignore
from pfl.model.pytorch import PyTorchModel  # pyright: ignore

from benchmarks import small_work


def run(turn: small_work.Turn, count: int, size: int, seed: int) -> None:
  """Runs rounds of `size` of `count` clients."""
  data, network = small_work.torch_clients(count), small_work.torch_model(seed)
  rng = np.random.default_rng(seed)
  cohort: list[int] = []

  def sample() -> int:
    nonlocal cohort
    if not cohort:
      cohort = rng.permutation(len(data))[:size].tolist()
    return cohort.pop()

  class Report(TrainingProcessCallback):  # pyright: ignore
    def after_central_iteration(self, *_, **__):
      turn.done(network.mean_loss())
      return False, Metrics()

  dataset = FederatedDataset(lambda k: Dataset(raw_data=data[k]), sample)
  FederatedAveraging().run(
    NNAlgorithmParams(10**6, 10**6, size, None),
    SimulatedBackend(
      training_data=dataset,
      val_data=dataset,
      postprocessors=[WeightByDatapoints()],
    ),
    PyTorchModel(
      network,
      torch.optim.SGD,
      torch.optim.SGD(network.parameters(), lr=1.0),
    ),
    NNTrainHyperParams(
      local_num_epochs=1,
      local_learning_rate=small_work.RATE,
      local_batch_size=small_work.BATCH,
    ),
    NNEvalHyperParams(local_batch_size=None),
    [Report()],
    send_metrics_to_platform=False,
  )
