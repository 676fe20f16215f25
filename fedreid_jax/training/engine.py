"""Builds the executor of the rounds of a federation from a configuration."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedreid_jax.core import param_filter, types
from fedreid_jax.core.secret import Secret
from fedreid_jax.data import sampling
from fedreid_jax.data.augment import Transforms
from fedreid_jax.data.federation import Federation
from fedreid_jax.losses import objective
from fedreid_jax.method import optimizers
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.round import compose, simulation
from fedreid_jax.round.cohort import cohort
from fedreid_jax.round.server import gathering
from fedreid_jax.round.settings import Settings, SimulationOptions
from fedreid_jax.training.reports import budget, simulated_time


class Variant(NamedTuple):
  """The differences of an executor from the simulation of all clients.

  Attributes:
    plan: `(config.local, clients, seed or secret) -> (planner, (S, B),
      masked)`, as `sampling.make`.
    executor: class of the executor, or a function with its arguments.
    cohort: number of clients of a round, `K`; None computes it from the clients
      of the federation.
    columns: of the classifier, `C`; None computes it likewise.
  """

  plan: Callable[..., tuple[cohort.Planner, tuple[int, int], bool]] = (
    sampling.make
  )
  executor: Callable[..., simulation.Executor] = simulation.Executor
  cohort: int | None = None
  columns: int | None = None


SIMULATED = Variant()


def make_executor(
  config,
  federation: Federation,
  model: types.Model,
  components: tuple[Component, ...],
  transforms: Transforms,
  mesh: Mesh,
  *,
  optimizer: optimizers.Optimizer | None = None,
  variant: Variant = SIMULATED,
  secret: Secret | None = None,
) -> simulation.Executor:
  """Builds the executor of the rounds of a federation.

  Args:
    config: the configuration of the run.
    federation: images of the clients, and the public images.
    model: the network.
    components: the components of the method, in order.
    transforms: the image transforms for training and for tests.
    mesh: the devices that run the clients.
    optimizer: the optimiser of the clients; None makes the one of `config`.
    variant: differences from the simulation of all clients.
    secret: root of the draws of the components, cohorts and batches; with None
      they follow from the seed.
  """
  clients, local = federation.clients, config.local
  participants = participants_of(config, federation, variant.cohort)
  components = bound(components, participants, model)
  planner, shape, masked = variant.plan(local, clients, secret or config.seed)
  images = jax.ShapeDtypeStruct(
    (shape[1], *federation.image_shape), jnp.float32
  )
  forward = functools.partial(model.apply, train=False)
  variables = jax.eval_shape(model.init, jax.random.key(config.seed))
  # Before any allocation: a system that runs out of memory may end the process
  # without a message.
  each = budget.cost(forward, variables, federation.image_shape)
  members = min(participants.cohort, len(clients))
  budget.check(config, shape, members, each, len(mesh.local_devices))
  settings = _settings(
    config,
    model,
    components,
    transforms,
    outputs=jax.eval_shape(forward, variables, images)[0],
    image_shape=images.shape,
    num_steps=shape[0],
    masked=masked,
    optimizer=optimizer or optimizers.make(config.optim),
  )
  uploads = _uploads(config, variables, components, participants.cohort)
  # The unit of exact sums is chosen so that the weights of the K largest
  # clients fit.
  sizes = sorted((c.num_images for c in clients), reverse=True)
  algorithm = compose.compose(
    components,
    settings,
    batch_stats_rule=config.batch_stats_rule,
    exact=config.execution.deterministic,
    sizes=sizes[: uploads.number],
  )
  if variant.cohort is not None:
    # Uploads of sites are received one after another and checked one by one.
    algorithm = algorithm._replace(fold=None)
  if algorithm.program.has_data_pass:
    budget.check_data_pass(local.data_pass_batch, each)
  return variant.executor(
    algorithm,
    clients,
    planner,
    federation.image_shape,
    _options(config, shape, uploads, federation, planner, components, secret),
    mesh,
    None if federation.public is None else federation.public.images(),
  )


def participants_of(
  config, federation: Federation, size: int | None = None
) -> Participants:
  """Returns the participants of a run.

  Args:
    config: the configuration of the run.
    federation: images of the clients, and the public images.
    size: largest number of clients in a round; None follows `config`.
  """
  clients, public = federation.clients, federation.public
  if size is None:
    fixed = cohort.size(len(clients), config.fraction)
    size = _places(config, len(clients)) or fixed
  return Participants(
    clients,
    0 if public is None else len(public.identities),
    size,
    config.fraction,
    config.cohort == 'poisson',
    config.rounds,
    config.local.sampler,
    config.local.batch,
    config.local.identities,
    config.local.steps,
  )


def _places(config, num_clients: int) -> int:
  """Returns the largest size of a Poisson cohort, 0 for a fixed cohort."""
  if config.cohort == 'fixed':
    return 0
  return min(config.cohort_max or num_clients, num_clients)


def bound(
  components: tuple[Component, ...],
  participants: Participants,
  model: types.Model,
) -> tuple[Component, ...]:
  """Checks the participants with every component, then binds them.

  Args:
    components: of the method, in order.
    participants: of the run.
    model: the network.

  Raises:
    FedReIDError: if a component cannot use the clients or the public images.
  """
  participants = completed(components, participants, model)
  for component in components:
    if component.info.check:
      component.info.check(participants)
  return tuple(
    component.info.bind(participants) if component.info.bind else component
    for component in components
  )


def completed(
  components: tuple[Component, ...],
  participants: Participants,
  model: types.Model,
) -> Participants:
  """Adds the releases of the components and the norm of their rounding.

  Args:
    components: of the method, in order.
    participants: of the run.
    model: the network.
  """
  released = tuple(c.info.released for c in components if c.info.released)
  return participants._replace(
    released=released, rounding=_rounding(components, participants, model)
  )


def _rounding(
  components: tuple[Component, ...],
  participants: Participants,
  model: types.Model,
) -> float | None:
  """Returns the norm of the rounding of an update, None without a sum."""
  adders = [c for c in components if c.summation]
  if not adders:
    return None
  found = adders[0].info.rounding
  if found is None:
    return 0.0
  variables = jax.eval_shape(model.init, jax.random.key(0))
  shared, _ = param_filter.split(variables, compose.shared_leaves(components))
  trained, _ = param_filter.trainable(shared)
  return found(participants, sum(x.size for x in trained.values()))


def _uploads(
  config, variables, components: tuple[Component, ...], number: int
) -> gathering.Uploads:
  """Returns the uploads of a round.

  Raises:
    FedReIDError: as `gathering.of_round`.
  """
  compose.check(components)
  shared, _ = param_filter.split(variables, compose.shared_leaves(components))
  sizes = (x.size * x.dtype.itemsize for x in shared.values())
  execution = config.execution
  return gathering.of_round(
    components,
    number,
    sum(sizes),
    execution.stack_budget_mb,
    execution.deterministic,
  )


def _options(
  config,
  plan_shape: tuple[int, int],
  uploads: gathering.Uploads,
  federation: Federation,
  planner: cohort.Planner,
  components: tuple[Component, ...],
  secret: Secret | None,
) -> SimulationOptions:
  limit = config.execution.image_budget_mb
  return SimulationOptions(
    seed=config.seed,
    fraction=config.fraction,
    width=config.execution.width,
    budget=int(limit * 2**20) if limit else budget.of_images(),
    plan_shape=plan_shape,
    data_pass_batch=config.local.data_pass_batch,
    uploads=uploads,
    rounds=config.rounds,
    places=_places(config, len(federation.clients)),
    timetable=simulated_time.make(
      config,
      federation.clients,
      planner,
      uploads.model_bytes,
      max(component.info.max_staleness for component in components),
      secret,
    ),
    secret=secret,
  )


def _settings(
  config,
  model: types.Model,
  components: tuple[Component, ...],
  transforms: Transforms,
  **shapes,
) -> Settings:
  """Returns the settings of the local training.

  Args:
    config: the configuration of the run.
    model: the network.
    components: the components of the method, in order.
    transforms: the image transforms for training and for tests.
    **shapes: the fields `outputs`, `image_shape`, `num_steps`, `masked` and
      `optimizer` of `Settings`.
  """
  return Settings(
    model=model,
    objective=objective.make(config.loss),
    schedule=optimizers.schedule(config.optim, config.rounds),
    train_transform=transforms.train,
    test_transform=transforms.test,
    shared=compose.shared_leaves(components),
    persistent=not config.optim.reset_each_round,
    schedule_per_step=config.optim.schedule_per_step,
    data_pass_batch=config.local.data_pass_batch,
    accumulate=config.local.accumulate,
    **shapes,
  )
