"""Settings of the local round and of the simulation, beside components."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

from fedreid_jax.core import types
from fedreid_jax.core.options import Mark, Natural, NonNegative
from fedreid_jax.core.secret import Secret
from fedreid_jax.core.types import Array, Metrics
from fedreid_jax.method.optimizers import Optimizer
from fedreid_jax.round.server.gathering import Uploads
from fedreid_jax.round.timetable import Timetable


@dataclasses.dataclass(frozen=True)
class Execution:
  """Use of devices and memory by a run."""

  deterministic: Annotated[
    bool, 'produce the same bits on 1, 2, 4 and 8 devices'
  ] = True
  width: Annotated[
    Natural,
    'number of clients vmapped at a time, 0 means all; values other than 1 are '
    'not deterministic',
  ] = 1
  devices: Annotated[
    Natural, 'number of devices; 0 means at most one per client'
  ] = 0
  store: Annotated[
    Literal['auto', 'memory', 'disk'],
    Mark.REPORTING,
    'states of the clients between rounds: auto keeps them in memory for one '
    'process and at most 1,024 clients and 2 GiB, otherwise in files of the '
    'work directory',
  ] = 'auto'
  image_budget_mb: Annotated[
    NonNegative,
    'limit of images on a device in MB; 0 means a quarter of its memory',
  ] = 0.0
  stack_budget_mb: Annotated[
    NonNegative,
    'limit of the uploads of a round in MB on a device, of a method that '
    'needs all of them at once; uploads of other methods are added as clients '
    'end',
  ] = 512.0
  debug: Annotated[
    bool,
    Mark.REPORTING,
    'run clients in plain Python, one after another and without compilation, '
    'so that an error names client, hook, component, step and shapes; slow, '
    'and results differ by roundings',
  ] = False


class Settings(NamedTuple):
  """The parts of a local round that do not belong to components.

  Attributes:
    model: the network.
    objective: `(Outputs, Batch) -> (loss, metrics)`.
    optimizer: pure functions over the parameters.
    schedule: `(round with fraction) -> lr`.
    train_transform: `(key, uint8 [B, H, W, ch], modalities) -> float32 images`.
    test_transform: `(uint8 [B, H, W, ch]) -> float32 images`.
    outputs: shapes of the model's outputs for a batch.
    image_shape: `(B, H, W, ch)` of a batch, B with all frames.
    num_steps: number of steps of the longest round.
    shared: regular expression of the shared parameters.
    persistent: whether the optimiser state is kept between rounds.
    schedule_per_step: whether the learning rate changes within a round.
    masked: whether some batches have padded rows.
    data_pass_batch: number of images in a batch of a pass over all images.
    accumulate: whether the gradients of a round are accumulated for one update
      at its end.
    frames: number of frames of a tracklet, which follow each other in the rows
      of a plan; 1 for single images.
  """

  model: types.Model
  objective: Callable[..., tuple[Array, Metrics]]
  optimizer: Optimizer
  schedule: Callable[[Array], Array]
  train_transform: Callable[..., Array]
  test_transform: Callable[[Array], Array]
  outputs: types.Outputs
  image_shape: tuple[int, int, int, int]
  num_steps: int
  shared: str
  persistent: bool = False
  schedule_per_step: bool = False
  masked: bool = True
  data_pass_batch: int = 64
  accumulate: bool = False
  frames: int = 1


class SimulationOptions(NamedTuple):
  """Options of the simulation of clients.

  Attributes:
    seed: seed of the run.
    fraction: fraction of the clients that take part in a round.
    width: number of clients vmapped at a time on a device, 0 for all.
    budget: limit of the bytes of images on a device, 0 for no limit.
    plan_shape: `(S, B)` of the longest plan of the run.
    data_pass_batch: number of images in a batch of a pass over all images.
    uploads: number and size of the uploads of a round.
    rounds: number of rounds of the run; no images are read ahead after the
      last one.
    places: largest number of clients in a round, each of which is sampled
      independently with the probability `fraction`; 0 for cohorts of a fixed
      size.
    timetable: the clients of each round in simulated time, None if all clients
      are available and take no time.
    secret: secret of the run, if nobody may guess the draws of its method.
  """

  seed: int
  fraction: float
  width: int
  budget: int
  plan_shape: tuple[int, int]
  data_pass_batch: int
  uploads: Uploads
  rounds: int
  places: int = 0
  timetable: Timetable | None = None
  secret: Secret | None = None

  @property
  def sampling(self) -> int | Secret:
    """Returns the secret or the seed from which cohorts are drawn."""
    # Amplification by sampling needs cohorts that nobody can guess.
    return self.secret or self.seed
