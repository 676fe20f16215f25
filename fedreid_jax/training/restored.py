"""Networks and evaluations of restored models."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedreid_jax import errors
from fedreid_jax.core import placement, types
from fedreid_jax.data import augment, load
from fedreid_jax.data.federation import Federation
from fedreid_jax.evaluation import evaluator
from fedreid_jax.models import functional, networks
from fedreid_jax.training import build, source_stats, structure


class Network(NamedTuple):
  """The network of a checkpoint.

  Attributes:
    model: the network.
    variables: initial ones, for parameters that were never shared.
    transforms: of images.
    mesh: devices.
  """

  model: types.Model
  variables: types.Flat
  transforms: augment.Transforms
  mesh: Mesh


def network(config, federation: Federation, leaves: types.Flat) -> Network:
  """Builds the network that belongs to leaves of a checkpoint.

  Args:
    config: all of it.
    federation: images.
    leaves: of one model; parameters that were never shared may be missing.

  Raises:
    IntegrityError: when they do not fit the configured network.
  """
  kernel = leaves.get('params/classifier/kernel')
  columns = 1 if kernel is None else kernel.shape[-1]
  model = functional.wrap(
    networks.build(
      config.model, columns, build.arguments(config, config.model.name)
    ),
    federation.image_shape,
  )
  variables = jax.jit(model.init)(jax.random.key(config.seed))
  structure.check_fits(leaves, variables)
  return Network(
    model,
    variables,
    augment.make(config.augment, federation.mean, federation.std),
    placement.make_mesh(config.execution.devices or None),
  )


def evaluate(
  config,
  models: dict[str, types.Flat],
  groups: np.ndarray,
  names: Sequence[str],
) -> list[dict[str, Any]]:
  """Tests models from a checkpoint on the targets of a configuration.

  Clients' images are read for `evaluation.batch_stats='source'` only.

  Args:
    config: all of it.
    models: variables by name; parameters that were never shared may be missing.
    groups: group of every client of the run, int32 `[N]`.
    names: of these clients, `N`.

  Raises:
    DataError: when the clients of the configuration are not those of the run.
  """
  from_source = config.evaluation.batch_stats == 'source'
  federation = load.load(
    config.data, from_source, build.arguments(config, config.data.source)
  )
  any_model = next(iter(models.values()))
  model, variables, transforms, mesh = network(config, federation, any_model)
  build.check_classifier(federation, any_model)
  run = evaluator.make(
    config.evaluation, federation.targets, model, transforms, mesh
  )
  models = {n: {**variables, **own} for n, own in models.items()}
  if not from_source:
    return run(models)
  if [c.name for c in federation.clients] != list(names):
    raise errors.DataError(
      f'clients {", ".join(c.name for c in federation.clients)} where the run '
      f'has {", ".join(names)}',
      'evaluation.batch_stats',
      "set it to 'running', or give the data of the run",
    )
  components = build.load_components(config)
  executor = build.make_executor(
    config, federation, model, components, transforms, mesh
  )
  sent = {'up': Counter(), 'down': Counter()}
  return run(models, source_stats.make(executor, groups, names, sent))
