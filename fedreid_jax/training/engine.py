"""Builds the rounds of a federation from a configuration."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedreid_jax import errors
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import options, prng, trees, types
from fedreid_jax.core.secret import Secret
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import sampling
from fedreid_jax.data.augment import Transforms
from fedreid_jax.data.federation import Federation
from fedreid_jax.losses import objective
from fedreid_jax.method import optimizers
from fedreid_jax.method.component import Component, Participants, releases
from fedreid_jax.round import cohort, compose, debug, placement, timetable
from fedreid_jax.round.clients import Clients
from fedreid_jax.round.cohorts import Cohorts
from fedreid_jax.round.rounds import Rounds
from fedreid_jax.round.server import gathering
from fedreid_jax.round.settings import Settings, SimulationOptions
from fedreid_jax.round.simulated import Simulated
from fedreid_jax.round.timetable import Rules, Timetable
from fedreid_jax.training import budget


class Plans(NamedTuple):
  """The batches of the clients of a run.

  Attributes:
    planner: batches of every client in every round.
    shape: `(S, B)` of the longest plan.
    padded: whether any batch can have padded rows.
  """

  planner: cohort.Planner
  shape: tuple[int, int]
  padded: bool


class Method(NamedTuple):
  """A method for the clients of a run, whoever runs them.

  Attributes:
    algorithm: the composed components.
    plans: batches of the clients.
    options: options of the rounds.
  """

  algorithm: compose.Algorithm
  plans: Plans
  options: SimulationOptions


def make_rounds(
  config: Config,
  federation: Federation,
  model: types.Model,
  components: tuple[Component, ...],
  transforms: Transforms,
  mesh: Mesh,
  *,
  optimizer: optimizers.Optimizer | None = None,
  secret: Secret | None = None,
  participants: Participants | None = None,
  runner: Callable[[Clients], Clients] | None = None,
) -> Rounds:
  """Builds the rounds of a federation, whose clients are simulated.

  `make_method` describes the other arguments. Components are bound already if
  participants are given.

  Args:
    runner: receives the runner of the clients and returns the one to use; None
      keeps it.
  """
  clients, shape = federation.clients, federation.image_shape
  if participants is None:
    people = participants_of(config, federation)
    participants = completed(components, people, model)
    components = bound(components, participants)
  place = debug.Place()
  if config.execution.debug:
    components = debug.watched(components, place)
    _check_debug(mesh)
  algorithm, plans, options = make_method(
    config,
    federation,
    model,
    components,
    transforms,
    mesh,
    participants,
    Plans(*sampling.make(config.local, clients, secret or config.seed)),
    min(participants.cohort, len(clients)),
    optimizer=optimizer,
    secret=secret,
  )
  cohorts = Cohorts(len(clients), options)
  simulated = Simulated(
    algorithm, clients, plans.planner, shape, cohorts, options, mesh
  )
  runs: Clients = simulated
  if config.execution.debug:
    planner, size = plans.planner, cohorts.size
    runs = debug.Debug(algorithm, clients, planner, size, options, mesh, place)
  return Rounds(
    algorithm,
    clients,
    runner(runs) if runner else runs,
    cohorts,
    shape,
    options,
    mesh,
    None if federation.public is None else federation.public.images(),
    simulated,
    config.execution.debug,
  )


def _check_debug(mesh: Mesh) -> None:
  if mesh.devices.size > 1:
    raise errors.ConfigError(
      f'plain Python on {mesh.devices.size} devices',
      'execution.debug',
      'use one device',
    )


def make_method(
  config: Config,
  federation: Federation,
  model: types.Model,
  components: tuple[Component, ...],
  transforms: Transforms,
  mesh: Mesh,
  participants: Participants,
  plans: Plans,
  here: int,
  *,
  optimizer: optimizers.Optimizer | None = None,
  secret: Secret | None = None,
) -> Method:
  """Composes a method for the clients of a federation.

  Args:
    components: bound to the participants.
    here: largest number of clients of a round that train on this machine.
    optimizer: None makes that of `config`.
    secret: None: the draws of the components, cohorts and batches follow from
      the seed.

  Raises:
    ConfigError: if the components cannot be composed.
    ResourceError: if the memory of this machine does not suffice.
  """
  local, shape = config.local, plans.shape
  images = jax.ShapeDtypeStruct(
    (shape[1], *federation.image_shape), jnp.float32
  )
  forward = functools.partial(model.apply, train=False)
  variables = jax.eval_shape(model.init, jax.random.key(config.seed))
  # Before any allocation: a system that runs out of memory may end the process
  # without a message.
  each = budget.cost(forward, variables, federation.image_shape)
  if not placement.is_described(mesh):
    budget.check(config, shape, here, each, len(mesh.local_devices))
  settings = _settings(
    config,
    model,
    components,
    transforms,
    outputs=jax.eval_shape(forward, variables, images)[0],
    image_shape=images.shape,
    num_steps=shape[0],
    masked=plans.padded,
    optimizer=optimizer or optimizers.make(config.optim),
  )
  compose.check(components)
  uploads = _uploads(config, components, variables, participants.cohort, mesh)
  algorithm = compose.compose(
    components,
    settings,
    batch_stats_rule=config.batch_stats_rule,
    exact=config.execution.deterministic,
    sizes=_largest(federation.clients, uploads.number),
  )
  passes = here and algorithm.program.has_data_pass
  if passes and not placement.is_described(mesh):
    budget.check_data_pass(local.data_pass_batch, each)
  given = shape, uploads, federation, plans.planner, components, secret
  return Method(algorithm, plans, _options(config, *given))


def _largest(clients: Sequence[ClientData], number: int) -> list[int]:
  """The numbers of images of the largest clients, whose weights must fit."""
  sizes = sorted((c.num_images for c in clients), reverse=True)
  return sizes[:number]


def _uploads(
  config: Config,
  components: tuple[Component, ...],
  variables: types.Flat,
  size: int,
  mesh: Mesh,
) -> gathering.Uploads:
  shared, _ = trees.split(variables, compose.shared_leaves(components))
  return gathering.of_round(
    components,
    size,
    trees.num_bytes(shared),
    config.execution.stack_budget_mb,
    config.execution.deterministic,
    placement.part_bytes(shared, mesh.devices.size),
  )


def participants_of(
  config: Config, federation: Federation, size: int | None = None
) -> Participants:
  """The participants of a run, at most `size` in a round; None: as `config`."""
  clients, public = federation.clients, federation.public
  fixed = cohort.size(len(clients), config.fraction)
  return Participants(
    clients,
    0 if public is None else len(public.identities),
    size or _places(config, len(clients)) or fixed,
    config.fraction,
    config.cohort == 'poisson',
    config.rounds,
    config.local.sampler,
    config.local.batch,
    config.local.identities,
    config.local.steps,
    image_shape=federation.image_shape,
  )


def _places(config: Config, num_clients: int) -> int:
  """Largest size of a Poisson cohort, 0 for a fixed cohort."""
  if config.cohort == 'fixed':
    return 0
  return min(config.cohort_max or num_clients, num_clients)


def bound(
  components: tuple[Component, ...], participants: Participants
) -> tuple[Component, ...]:
  """Binds every component to the completed participants, which it checks.

  Raises:
    FedReIDError: a component cannot use the clients or the public images.
  """
  return tuple(_bound(component, participants) for component in components)


def _bound(component: Component, participants: Participants) -> Component:
  made = component.bind(participants) if component.bind else None
  return made or component


def completed(
  components: tuple[Component, ...],
  participants: Participants,
  model: types.Model,
) -> Participants:
  """Adds the releases of the components and the norm of their rounding."""
  released = tuple(filter(None, map(releases, components)))
  participants = participants._replace(released=released)
  rounding = _rounding(components, participants, model)
  return participants._replace(rounding=rounding)


def _rounding(
  components: tuple[Component, ...],
  participants: Participants,
  model: types.Model,
) -> float | None:
  """The norm of the rounding of an update, None without a sum."""
  adder = next((c for c in components if c.summation), None)
  summation = adder and _bound(adder, participants).summation
  if not summation:
    return None
  variables = jax.eval_shape(model.init, jax.random.key(0))
  shared, _ = trees.split(variables, compose.shared_leaves(components))
  trained, _ = trees.trainable(shared)
  squares = (
    x.size * summation.rounding(summation.limit(name)) ** 2
    for name, x in trained.items()
  )
  return math.sqrt(sum(squares))


def _options(
  config: Config,
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
    timetable=make_timetable(
      config,
      federation.clients,
      planner,
      uploads.model_bytes,
      max(component.max_staleness for component in components),
      secret,
    ),
    secret=secret,
  )


def _settings(
  config: Config,
  model: types.Model,
  components: tuple[Component, ...],
  transforms: Transforms,
  **shapes,
) -> Settings:
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
    frames=config.local.frames,
    **shapes,
  )


def make_timetable(
  config: Config,
  clients: Sequence[ClientData],
  planner: cohort.Planner,
  model_bytes: int,
  max_staleness: int,
  secret: Secret | None,
) -> Timetable | None:
  """The timetable, None if no field of `availability` is set.

  Args:
    model_bytes: bytes of the shared parameters.
    max_staleness: largest staleness of an upload that the method uses.
    secret: None: the cohorts follow from the seed.

  Raises:
    ConfigError: for a file that cannot be used.
  """
  given = config.availability
  if options.is_default(given):
    return None
  uids = [prng.client_uid(client.name) for client in clients]
  if given.file:
    names = [client.name for client in clients]
    available = timetable.listed(given.file, names)
  else:
    available = timetable.daily(config.seed, uids, given.mean, given.swing)
  devices = timetable.Devices(
    given.step_s, given.speed_spread, given.bandwidth, given.bandwidth_spread
  )

  @functools.cache
  def seconds(client: int) -> float:
    steps = planner.num_steps(client)
    # The model is sent to the client and back.
    sent = 2 * model_bytes
    return devices.seconds(config.seed, uids[client], steps, sent)

  rules = Rules(
    size=cohort.size(len(clients), config.fraction),
    over_selection=given.over_selection,
    deadline_s=given.deadline_s,
    in_flight=given.in_flight,
    max_staleness=max_staleness,
  )
  return Timetable(rules, secret or config.seed, uids, available, seconds)
