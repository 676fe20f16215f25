"""Builds the data, model, algorithm, executor and evaluators of a run."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import algorithms, errors
from fedreid_jax.core import (
  cohort,
  compose,
  local_step,
  optimizers,
  param_filter,
  placement,
  plugins,
  simulation,
  types,
)
from fedreid_jax.core.component import Participants
from fedreid_jax.data import augment, load, sampling
from fedreid_jax.data.federation import Federation
from fedreid_jax.evaluation import classification, evaluator
from fedreid_jax.losses import objective
from fedreid_jax.models import functional, networks
from fedreid_jax.training import agreement, budget

CLASSIFIER = r'params/(.+/)?classifier/'


class Setup(NamedTuple):
  """The parts of a run.

  Attributes:
    federation: images.
    variables: of the model before round 0.
    pretrained: names of the variables from a weight file.
    executor: runs rounds.
    schedule: learning rate of a round.
    evaluate: `({name: variables of a model}, source) -> entries`, see
      `evaluator.make`.
  """

  federation: Federation
  variables: types.Flat
  pretrained: tuple[str, ...]
  executor: simulation.Executor
  schedule: Callable[..., types.Array]
  evaluate: Callable[..., list[dict[str, Any]]]


def build(config) -> Setup:
  """Builds all parts of a run; the training step is not compiled yet."""
  federation = load.load(
    config.data, options=arguments(config, config.data.source)
  )
  agreement.require('data', lambda: _inputs(config, federation))
  columns = max(c.num_identities for c in federation.clients)
  model = functional.wrap(
    networks.build(config.model, columns, arguments(config, config.model.name)),
    federation.image_shape,
  )
  components = load_components(config)
  transforms = augment.make(config.augment, federation.mean, federation.std)
  mesh = placement.make_mesh(_num_devices(config, len(federation.clients)))
  agreement.connect(mesh)
  variables = jax.jit(model.init)(jax.random.key(config.seed))
  loaded: list[str] = []
  if config.model.pretrained:
    from fedreid_jax.models import pretrained

    nested = param_filter.unflatten(jax.device_get(variables))
    nested = pretrained.load(config.model.pretrained, nested)
    variables = param_filter.flatten(nested)
    loaded = [name for name in variables if pretrained.covers(name)]
  shared, _ = param_filter.split(variables, compose.shared_leaves(components))
  check_classifier(federation, shared or variables)
  return Setup(
    federation,
    variables,
    tuple(loaded),
    make_executor(config, federation, model, components, transforms, mesh),
    optimizers.schedule(config.optim, config.rounds),
    evaluator.make(
      config.evaluation, federation.targets, model, transforms, mesh
    ),
  )


def load_components(config) -> tuple:
  """Returns the components of a configuration's method, in order."""
  own = {
    plugins.group_of(name): arguments(config, name)
    for name in config.components
  }
  return compose.load(config.components, own, algorithms)


def arguments(config, name: str) -> dict[str, Any]:
  """Returns the hyper-parameters of a component or a plug-in.

  Args:
    config: all of it.
    name: as the configuration has it.
  """
  return dict(config.get(plugins.group_of(name), {}))


def _inputs(config, federation: Federation) -> dict[str, str]:
  """Returns digests of the inputs of a run: images, labels and weights."""
  inputs = {'digest of the images': federation.digest}
  for one in federation.clients:
    labels = hashlib.sha256(one.labels.tobytes() + one.cameras.tobytes())
    inputs[f'labels of {one.name}'] = labels.hexdigest()
  weights = Path(config.model.pretrained)
  if weights.is_file():
    inputs['model.pretrained'] = hashlib.sha256(
      weights.read_bytes()
    ).hexdigest()
  return inputs


def check_classifier(federation: Federation, leaves: types.Flat) -> None:
  """Refuses classification with a model without the clients' classifier.

  Raises:
    ConfigError: when there is a classification target and no classifier.
  """
  classifies = classification.PROTOCOL in [
    target.protocol for target in federation.targets
  ]
  if classifies and not param_filter.split(leaves, CLASSIFIER)[0]:
    raise errors.ConfigError(
      'the tested model has no classifier, since it is a personal parameter',
      'components',
      "classify with 'fedavg' or 'standalone'",
    )


def _num_devices(config, num_clients: int) -> int:
  """Returns the number of devices; at most one per client if one process."""
  wanted, present = config.execution.devices, jax.device_count()
  if wanted > present:
    raise errors.ConfigError(
      f'{wanted} devices of {present}', 'execution.devices', 'ask for fewer'
    )
  if wanted or jax.process_count() > 1:
    return wanted or present
  return min(present, num_clients)


def make_executor(
  config,
  federation: Federation,
  model,
  components,
  transforms,
  mesh,
  *,
  optimizer: optimizers.Optimizer | None = None,
) -> simulation.Executor:
  """Builds the executor of the rounds of a federation.

  Args:
    config: all of it.
    federation: images.
    model: the network.
    components: of the method.
    transforms: of images, for training and test.
    mesh: devices.
    optimizer: of the clients, None for that of the configuration.
  """
  clients, local = federation.clients, config.local
  public = federation.public
  participants = Participants(
    clients,
    0 if public is None else len(public.identities),
    len(cohort.sample_cohort(config.seed, 0, len(clients), config.fraction)),
  )
  for component in components:
    if component.info.check:
      component.info.check(participants)
  planner, shape, masked = sampling.make(local, clients, config.seed)
  seed = jax.random.key(config.seed)
  images = jax.ShapeDtypeStruct(
    (local.batch, *federation.image_shape), jnp.float32
  )
  forward = functools.partial(model.apply, train=False)
  variables = jax.eval_shape(model.init, seed)
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
  deterministic = config.execution.deterministic
  algorithm = compose.compose(
    components,
    settings,
    batch_stats_rule=config.batch_stats_rule,
    ordered=deterministic,
  )
  if algorithm.program.has_data_pass:
    budget.check_data_pass(local.data_pass_batch, each)
  options = simulation.Options(
    seed=config.seed,
    fraction=config.fraction,
    width=config.execution.width,
    ordered=deterministic,
    budget=int(config.execution.image_budget_mb * 2**20),
    plan_shape=shape,
    data_pass_batch=local.data_pass_batch,
  )
  return simulation.Executor(
    algorithm,
    clients,
    planner,
    federation.image_shape,
    options,
    mesh,
    None if public is None else public.images(),
  )


def _settings(
  config, model, components, transforms, **shapes
) -> local_step.Settings:
  """Returns the settings of the local loop.

  Args:
    config: all of it.
    model: the network.
    components: of the method.
    transforms: of images, for training and test.
    **shapes: `outputs`, `image_shape`, `num_steps`, `masked`, `optimizer`.
  """
  return local_step.Settings(
    model=model,
    objective=objective.make(config.loss),
    schedule=optimizers.schedule(config.optim, config.rounds),
    train_transform=transforms.train,
    test_transform=transforms.test,
    seed=jax.random.key(config.seed),
    shared=compose.shared_leaves(components),
    persistent=not config.optim.reset_each_round,
    schedule_per_step=config.optim.schedule_per_step,
    data_pass_batch=config.local.data_pass_batch,
    accumulate=config.local.accumulate,
    **shapes,
  )


def named_models(
  shared: types.Flat,
  personal: types.Flat,
  groups: np.ndarray,
  names: Sequence[str],
) -> dict[str, types.Flat]:
  """Returns the variables of each model of a run by its name.

  One model is 'global', several are 'cluster:GROUP'; without shared parameters
  every client has its own model, 'client:NAME'.

  Args:
    shared: shared parameters, `[G, ...]`.
    personal: personal parameters, `[N, ...]`; those added to a model of the
      server are of any client, since only identity scores depend on them.
    groups: group of every client, int32 `[N]`.
    names: of the clients, `N`.
  """
  if not shared:
    return {
      f'client:{name}': {n: x[k] for n, x in personal.items()}
      for k, name in enumerate(names)
    }
  several = next(iter(shared.values())).shape[0] > 1
  own = {n: x[0] for n, x in personal.items()}
  return {
    f'cluster:{group}' if several else 'global': {
      n: leaf[group] for n, leaf in shared.items()
    }
    | own
    for group in np.unique(groups)
  }
