"""config -> data, model, algorithm, executor and evaluators."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax import algorithms
from fedreid_jax.core import (
  client,
  compose,
  execute,
  mapping,
  optim,
  partition,
  types,
)
from fedreid_jax.data import augment, load, sampler
from fedreid_jax.data.federation import Federation
from fedreid_jax.evaluation import evaluate_retrieval, features
from fedreid_jax.losses import objective
from fedreid_jax.models import functional, reid

COUNTS = ('queries', 'gallery', 'invalid_queries', 'ties')


class Setup(NamedTuple):
  """Everything a configuration describes, ready to run.

  Attributes:
    federation: images.
    variables: of the model before round 0.
    executor: runs rounds.
    schedule: learning rate of a round.
    evaluate: `(ServerState, ClientState) -> evaluation entries`.
  """

  federation: Federation
  variables: types.Flat
  executor: execute.Executor
  schedule: Callable[..., types.Array]
  evaluate: Callable[..., list[dict[str, Any]]]


def build(config) -> Setup:
  """Builds all parts of a run; nothing is compiled for training yet."""
  federation = load.load(config.data)
  clients = federation.clients
  columns = max(c.num_identities for c in clients)
  model = functional.wrap(
    reid.build(config.model, columns), federation.image_shape
  )
  components = compose.load(
    config.components,
    {n: config[n].to_dict() for n in config.components if n in config},
    algorithms,
  )
  planner, shape, masked = sampler.make(config.local, clients, config.seed)
  views = augment.make(config.augment, federation.mean, federation.std)
  seed = jax.random.key(config.seed)
  images = jax.ShapeDtypeStruct(
    (config.local.batch, *federation.image_shape), jnp.float32
  )
  settings = client.Settings(
    model=model,
    objective=objective.make(config.loss),
    optimizer=optim.make(config.optim),
    schedule=optim.schedule(config.optim, config.rounds),
    train_view=views.train,
    test_view=views.test,
    outputs=jax.eval_shape(
      functools.partial(model.apply, train=False),
      jax.eval_shape(model.init, seed),
      images,
    )[0],
    seed=seed,
    shared=compose.shared_leaves(components),
    persistent=not config.optim.reset_each_round,
    ramp=config.optim.ramp,
    masked=masked,
    survey_batch=config.local.survey_batch,
  )
  algorithm = compose.compose(
    components,
    settings,
    bn_buffers=config.bn_buffers,
    ordered=config.execution.deterministic,
  )
  mesh = mapping.make_mesh(config.execution.devices or None)
  options = execute.Options(
    seed=config.seed,
    fraction=config.fraction,
    width=1 if config.execution.deterministic else config.execution.width,
    ordered=config.execution.deterministic,
    budget=int(config.execution.image_budget_mb * 2**20),
    plan_shape=shape,
    survey_batch=config.local.survey_batch,
  )
  variables = jax.jit(model.init)(seed)
  if config.model.pretrained:
    from fedreid_jax.models import pretrained

    nested = partition.unflatten(jax.device_get(variables))
    nested = pretrained.load(config.model.pretrained, nested)
    variables = partition.flatten(nested)
  extract = features.make_extractor(
    model,
    views.test,
    mesh,
    batch=config.evaluation.batch,
    flip=config.evaluation.flip,
    feature=config.evaluation.feature,
  )
  return Setup(
    federation,
    variables,
    execute.Executor(
      algorithm, clients, planner, federation.image_shape, options, mesh
    ),
    settings.schedule,
    functools.partial(_evaluate, config.evaluation, federation, extract),
  )


def _evaluate(config, federation, extract, server, clients):
  """Ranks every target with every model of the server."""
  groups = next(iter(server.shared.values())).shape[0]
  personal = jax.tree.map(lambda x: x[0], clients.personal)
  entries = []
  for group in range(groups):
    variables = features.model_variables(server, personal, group)
    for target in federation.targets:
      query, gallery = target.query, target.gallery
      metrics = evaluate_retrieval(
        extract(variables, query.images()),
        extract(variables, gallery.images()),
        query.identities,
        gallery.identities,
        query.cameras,
        gallery.cameras,
        metric=config.metric,
        protocol=config.protocol,
        ranks=tuple(config.ranks),
      )
      entries.append(
        {
          'target': target.name,
          'model': 'global' if groups == 1 else f'cluster:{group}',
          'protocol': config.protocol,
          'direction': 'all',
          'metrics': {k: v for k, v in metrics.items() if k not in COUNTS},
        }
        | {k: metrics[k] for k in COUNTS}
      )
  return entries
