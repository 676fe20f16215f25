"""The function from pixels to embeddings that the evaluation of a run ranks.

The function is traced once with a symbolic number of images. Equations that the
embedding does not need are removed, and the variables that remain become
constants.
"""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend import core
from jax.interpreters import partial_eval

from fedreid_jax.apps.deploy.exchange import versions
from fedreid_jax.config import load as config_lib
from fedreid_jax.core import types
from fedreid_jax.data import load as data_lib
from fedreid_jax.data.federation import Federation
from fedreid_jax.evaluation import features
from fedreid_jax.round.devices import placement
from fedreid_jax.training import build, evaluation, named_models, source_stats
from fedreid_jax.training.files import run_files
from fedreid_jax.training.processes import process

BATCH = 'b'  # name of the symbolic number of images
IMAGES, MODALITIES, OUTPUT = 'images', 'modalities', 'embedding'


class Embedding(NamedTuple):
  """An embedding as a program of its inputs.

  Attributes:
    config: configuration of the run.
    step: rounds of training.
    name: name of the model: 'global', 'cluster:GROUP' or 'client:NAME'.
    dtype: type of the computation, one of `networks.DTYPES`.
    variables: variables on which the embedding depends, `{'params/...':
      array}`; names with the prefix `versions.INFRARED` are moments of infrared
      images.
    program: `(*variables in order, *inputs) -> [embedding]`.
    inputs: shapes and types by name, in order: 'images', uint8 `[b, H, W, ch]`,
      and 'modalities', int32 `[b]`, if the embedding depends on them.
    output: shape and type of the result, float32 `[b, D]`.
    evaluate: `(images, modalities) -> float32 [M, D]` on the host, as the
      evaluation of the run computes it.
  """

  config: Any
  step: int
  name: str
  dtype: str
  variables: dict[str, np.ndarray]
  program: core.ClosedJaxpr
  inputs: dict[str, jax.ShapeDtypeStruct]
  output: jax.ShapeDtypeStruct
  evaluate: Callable[..., np.ndarray]

  def call(self, *inputs: types.Array) -> types.Array:
    """Returns float32 `[b, D]` while `jax.export` traces it with `inputs`."""
    leaves = map(jnp.asarray, self.variables.values())
    return core.jaxpr_as_fun(self.program)(*leaves, *inputs)[0]


def load(
  workdir: Path, checkpoint: str = 'latest', model: str = '', dtype: str = ''
) -> Embedding:
  """Loads the embedding of a model of a run.

  Images of the run are read only to measure moments of batch normalisation
  (`evaluation.batch_stats`).

  Args:
    workdir: work directory of the run.
    checkpoint: 'latest', 'best', or the number of a round that was saved.
    model: name of the model; '' for the server's, or the first of several.
    dtype: type of the computation; '' for the type of the run.

  Raises:
    IntegrityError: when there is no such run or checkpoint, or it is damaged.
    ConfigError: for a model that the run does not have.
  """
  config = config_lib.load_saved(workdir)
  with process.orbax_muted(), run_files.checkpoints_of(workdir) as saved:
    step, models, groups, host = named_models.restore(saved, checkpoint)
  name = named_models.choose(models, model)
  federation = _federation(config)
  network = named_models.network(config, federation, models[name])
  own = {name: {**network.variables, **models[name]}}
  tested = (own,)
  if _is_measured(config):
    clients = host['clients']
    tested = evaluation.source(config, federation, network, groups, clients)(
      own
    )
  models = [{n: np.asarray(x) for n, x in one[name].items()} for one in tested]
  chosen = copy.deepcopy(config)
  chosen.model.dtype = dtype = dtype or config.model.dtype
  ranked = {
    'flip': config.evaluation.flip,
    'feature': config.evaluation.feature,
  }
  traced = build.network(
    chosen, named_models.num_classes(models[0]), federation.image_shape
  )
  view = network.transforms.test
  parts = trace(
    versions.select(features.make_embedding(traced, view, **ranked)),
    versions.join(models),
    federation.image_shape,
  )
  # Batches of three images, since a batch of the evaluation may take minutes.
  extract = features.make_extractor(
    network.model, view, placement.make_mesh(1), batch=3, **ranked
  )
  evaluate = functools.partial(features.of_each, extract, models)
  return Embedding(config, step, name, dtype, *parts, evaluate)


def _is_measured(config: Any) -> bool:
  return config.evaluation.batch_stats in source_stats.MEASURED


def _federation(config: Any) -> Federation:
  """Returns the federation of a run, with images if moments are measured."""
  if not _is_measured(config):
    return data_lib.without_images(config.data)
  return data_lib.load(
    config.data,
    options=build.arguments(config, config.data.source),
    held_out=config.evaluation.validation,
  )


def trace(
  function: Callable[..., types.Array],
  variables: types.Flat,
  image_shape: tuple[int, int, int],
) -> tuple[
  dict[str, np.ndarray],
  core.ClosedJaxpr,
  dict[str, jax.ShapeDtypeStruct],
  jax.ShapeDtypeStruct,
]:
  """Returns the `variables`, `program`, `inputs` and `output` of an embedding.

  Args:
    function: result of `features.make_embedding`.
    variables: variables of the model.
    image_shape: `(H, W, ch)`.
  """
  (b,) = export.symbolic_shape(BATCH)
  inputs = {
    IMAGES: jax.ShapeDtypeStruct((b, *image_shape), jnp.uint8),
    MODALITIES: jax.ShapeDtypeStruct((b,), jnp.int32),
  }
  closed = jax.make_jaxpr(function)(variables, *inputs.values())
  # The export would keep unused inputs, such as modalities, as arguments of the
  # program.
  needed, used = partial_eval.dce_jaxpr(closed.jaxpr, [True])
  # JAX flattens a dict in the order of its sorted names.
  names = zip([*sorted(variables), *inputs], used, strict=True)
  chosen = [name for name, is_used in names if is_used]
  (out,) = closed.out_avals
  return (
    {n: variables[n] for n in chosen if n in variables},
    core.ClosedJaxpr(needed, closed.consts),
    {n: inputs[n] for n in chosen if n in inputs},
    jax.ShapeDtypeStruct(out.shape, out.dtype),
  )
