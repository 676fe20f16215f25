"""Builds the executor of the rounds of a federation from a configuration."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedreid_jax.core import (
  cohort,
  compose,
  optimizers,
  simulation,
  types,
)
from fedreid_jax.core.component import Component, Participants
from fedreid_jax.core.settings import Settings, SimulationOptions
from fedreid_jax.data import sampling
from fedreid_jax.data.augment import Transforms
from fedreid_jax.data.federation import Federation
from fedreid_jax.losses import objective
from fedreid_jax.training import budget


def make_executor(
  config,
  federation: Federation,
  model: types.Model,
  components: tuple[Component, ...],
  transforms: Transforms,
  mesh: Mesh,
  *,
  optimizer: optimizers.Optimizer | None = None,
) -> simulation.Executor:
  """Builds the executor of the rounds of a federation.

  Args:
    config: the configuration of the run.
    federation: images of the clients, and the public images.
    model: the network.
    components: the components of the method, in order.
    transforms: the image transforms for training and for tests.
    mesh: the devices that run the clients.
    optimizer: the optimiser of the clients; None selects that of `config`.
  """
  clients, local = federation.clients, config.local
  participants = _participants(config, federation, components)
  planner, shape, masked = sampling.make(local, clients, config.seed)
  images = jax.ShapeDtypeStruct(
    (local.batch, *federation.image_shape), jnp.float32
  )
  forward = functools.partial(model.apply, train=False)
  variables = jax.eval_shape(model.init, jax.random.key(config.seed))
  each = budget.cost(forward, variables, federation.image_shape)
  budget.check(
    config, shape, participants.cohort, each, len(mesh.local_devices)
  )
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
  algorithm = compose.compose(
    components,
    settings,
    batch_stats_rule=config.batch_stats_rule,
    ordered=config.execution.deterministic,
  )
  if algorithm.program.has_data_pass:
    budget.check_data_pass(local.data_pass_batch, each)
  return simulation.Executor(
    algorithm,
    clients,
    planner,
    federation.image_shape,
    _options(config, shape),
    mesh,
    None if federation.public is None else federation.public.images(),
  )


def _participants(
  config, federation: Federation, components: tuple[Component, ...]
) -> Participants:
  """Returns the participants of a run after every component checked them.

  Raises:
    FedReIDError: if a component cannot use the clients or the public images.
  """
  clients, public = federation.clients, federation.public
  participants = Participants(
    clients,
    0 if public is None else len(public.identities),
    len(cohort.sample_cohort(config.seed, 0, len(clients), config.fraction)),
  )
  for component in components:
    if component.info.check:
      component.info.check(participants)
  return participants


def _options(config, plan_shape: tuple[int, int]) -> SimulationOptions:
  return SimulationOptions(
    seed=config.seed,
    fraction=config.fraction,
    width=config.execution.width,
    ordered=config.execution.deterministic,
    budget=int(config.execution.image_budget_mb * 2**20),
    plan_shape=plan_shape,
    data_pass_batch=config.local.data_pass_batch,
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
