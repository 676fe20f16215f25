"""The function from pixels to embeddings that the evaluation of a run ranks.

The function is traced once with a symbolic number of images. Equations that the
embedding does not need are removed, and the variables that remain become
constants.

With `evaluation.batch_stats='modality'` batch normalisation has different
moments for infrared and for visible images. The program then computes both
embeddings of an image and selects one. An exported model knows no gallery, so
that it has running moments where the run is evaluated with those of a gallery.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from fedreid_jax.apps.deploy import image_input
from fedreid_jax.apps.deploy.image_input import ImageInput
from fedreid_jax.config import load as config_lib
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import programs, trees
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.data import load as data_lib
from fedreid_jax.evaluation import features
from fedreid_jax.models import networks
from fedreid_jax.models.weights.sources import Pixels
from fedreid_jax.training import (
  build,
  earlier_data,
  model_card,
  named_models,
  run_evaluation,
  source_stats,
  weights_model,
  whole_network,
)
from fedreid_jax.training.files import recorder, run_files
from fedreid_jax.training.processes import process
from fedreid_jax.version import __version__

BATCH = 'b'  # name of the symbolic number of images
IMAGES, MODALITIES, OUTPUT = 'images', 'modalities', 'embedding'
INFRARED = 'infrared:'  # before names of moments that only infrared images have
_ORDERS = {3: 'RGB', 1: 'grey'}  # by the number of channels


class Embedding(NamedTuple):
  """An embedding as a program of its inputs.

  Attributes:
    variables: those on which the embedding depends, `{'params/...': array}`;
      names with the prefix `INFRARED` are moments of infrared images.
    inputs: shapes and types by name, in order: 'images', uint8 `[b, H, W, ch]`
      unless `received` is another form, and 'modalities', int32 `[b]`, if the
      embedding depends on them.
    evaluate: `(images, modalities) -> float32 [M, D]` on the host, as the
      evaluation of the run computes it from uint8 images `[M, H, W, ch]`.
    received: form of the input 'images'.
    run: what files say of the training, for JSON.
  """

  config: Config
  step: int  # rounds of training
  name: str  # 'global', 'cluster:GROUP' or 'client:NAME'
  dtype: str  # of the computation, one of `networks.DTYPES`
  variables: dict[str, np.ndarray]
  program: programs.Program  # `(*variables, *inputs) -> [embedding]`
  inputs: dict[str, jax.ShapeDtypeStruct]
  output: jax.ShapeDtypeStruct  # float32 `[b, D]`
  evaluate: Callable[..., np.ndarray]
  received: ImageInput = image_input.DEFAULT
  run: dict[str, Any] | None = None

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """Rows, columns and channels of an image."""
    shape = self.inputs[IMAGES].shape[1:]
    return self.received.image_shape(shape)

  @property
  def normalisation(self) -> Pixels:
    """Mean and standard deviation of the run's images."""
    return Pixels(tuple(self.config.data.mean), tuple(self.config.data.std))

  def call(self, *inputs: Array) -> Array:
    """Returns float32 `[b, D]` while `jax.export` traces it with `inputs`."""
    leaves = map(jnp.asarray, self.variables.values())
    return programs.function_of(self.program)(*leaves, *inputs)[0]


def load(
  workdir: Path,
  checkpoint: str = 'latest',
  model: str = '',
  dtype: str = '',
  received: ImageInput = image_input.DEFAULT,
  changes: Sequence[str] = (),
) -> Embedding:
  """Loads the embedding of a model of a run.

  Images of the run are read only to measure moments of batch normalisation.

  Args:
    checkpoint: 'latest', 'best', or the number of a round that was saved.
    model: '' for the server's model, or the first of several.
    dtype: type of the computation; '' for the type of the run.
    received: form of the input 'images'.
    changes: KEY=VALUE pairs of fields to change.

  Raises:
    IntegrityError: for a run or checkpoint that is absent or damaged.
    ConfigError: for a model that the run does not have, or an input that its
      images do not have.
  """
  config = config_lib.load_saved(workdir, changes)
  with process.orbax_muted():
    saved = run_files.checkpoints_of(workdir)
    step, models, groups, host = named_models.restore(saved, checkpoint)
  name = named_models.choose(models, model)
  measured = config.evaluation.batch_stats in source_stats.MEASURED
  if measured:
    federation = data_lib.load(
      config.data,
      options=build.arguments(config, config.data.source),
      held_out=config.evaluation.validation,
    )
  else:
    federation = data_lib.without_images(config.data)
  built = whole_network.pinned(config, workdir)
  network = named_models.network(built, federation, models[name])
  own = {name: {**network.variables, **models[name]}}
  tested = (own,)
  if measured:
    clients = host['clients']
    tested = run_evaluation.source(
      config, federation, network, groups, clients
    )(own)
  models = [{n: np.asarray(x) for n, x in one[name].items()} for one in tested]
  run = _run(config, step, name, workdir)
  return _traced(built, network, models, dtype, received)._replace(
    config=config, step=step, name=name, run=run
  )


def load_weights(
  name: str,
  dtype: str = '',
  received: ImageInput = image_input.DEFAULT,
  changes: Sequence[str] = (),
) -> Embedding:
  """Loads the embedding of published weights, or of a file, as `load`.

  Raises:
    ConfigError: as `weights_model.load`.
    IntegrityError: as `weights_model.load`.
  """
  found = weights_model.load(name, changes)
  models = [{n: np.asarray(x) for n, x in found.network.variables.items()}]
  before = found.about.get('run')
  run = {**before} if isinstance(before, dict) else {}
  run |= {k: v for k, v in found.about.items() if k == earlier_data.OWN}
  return _traced(found.config, found.network, models, dtype, received)._replace(
    name=found.name, run={'recipe': '', 'model': found.name} | run
  )


def _traced(
  config: Config,
  network: named_models.Network,
  models: Sequence[Flat],
  dtype: str,
  received: ImageInput,
) -> Embedding:
  """The embedding of a network, with variables for each modality or for all."""
  dtype = dtype or networks.dtype(config.model.dtype, jax.default_backend())
  shape = data_lib.without_images(config.data).image_shape
  received.check(shape[-1])
  # A file has the whole network, with added parameters in its kernels.
  whole = [build.merged(config, one, shape) for one in models]
  chosen = replace(
    config, model=replace(config.model, dtype=dtype, tune='', trained='')
  )
  ranked = {
    'flip': config.evaluation.flip,
    'feature': config.evaluation.feature,
  }
  traced = build.network(chosen, named_models.num_classes(models[0]), shape)
  view = network.transforms.test
  embed = features.make_embedding(traced, received.view(view), **ranked)
  parts = trace(select_moments(embed), join_moments(whole), shape, received)
  # Batches of three images, since a batch of the evaluation may take minutes.
  extract = features.make_extractor(network.model, view, batch=3, **ranked)
  evaluate = functools.partial(features.of_each, extract, models)
  return Embedding(config, 0, '', dtype, *parts, evaluate, received)


def join_moments(models: Sequence[Flat]) -> Flat:
  """Joins variables for visible and for infrared images, or for all images."""
  joined = dict(models[0])
  for infrared in models[1:]:
    joined |= {
      INFRARED + name: value
      for name, value in infrared.items()
      # Parameters are equal and are stored once.
      if not np.array_equal(value, joined[name])
    }
  return joined


def select_moments(embed: Callable[..., Array]) -> Callable[..., Array]:
  """Makes a function of `features.make_embedding` accept `join_moments`."""

  def embedding(variables: Flat, images: Any, modalities: Any) -> Any:
    visible = {n: x for n, x in variables.items() if not n.startswith(INFRARED)}
    found = embed(visible, images, modalities)
    if len(visible) == len(variables):
      return found
    infrared = visible | {
      n.removeprefix(INFRARED): x
      for n, x in variables.items()
      if n.startswith(INFRARED)
    }
    other = embed(infrared, images, modalities)
    return jnp.where((modalities == 1)[:, None], other, found)

  return embedding


def trace(
  function: Callable[..., Array],
  variables: Flat,
  image_shape: tuple[int, int, int],
  received: ImageInput = image_input.DEFAULT,
) -> tuple[
  dict[str, np.ndarray],
  programs.Program,
  dict[str, jax.ShapeDtypeStruct],
  jax.ShapeDtypeStruct,
]:
  """Traces a result of `features.make_embedding` for images `(H, W, ch)`."""
  (b,) = export.symbolic_shape(BATCH)
  inputs = {
    IMAGES: received.struct(b, image_shape),
    MODALITIES: jax.ShapeDtypeStruct((b,), jnp.int32),
  }
  closed = jax.make_jaxpr(
    lambda variables, images, modalities: function(
      variables, received.arranged(images), modalities
    )
  )(variables, *inputs.values())
  # The export would keep unused inputs, such as modalities, as arguments of the
  # program.
  needed, used = programs.without_unused(closed)
  # JAX flattens a dict in the order of its sorted names.
  names = zip([*sorted(variables), *inputs], used, strict=True)
  chosen = [name for name, is_used in names if is_used]
  (out,) = closed.out_avals
  return (
    {n: variables[n] for n in chosen if n in variables},
    needed,
    {n: inputs[n] for n in chosen if n in inputs},
    jax.ShapeDtypeStruct(out.shape, out.dtype),
  )


def describe(embedding: Embedding) -> dict[str, Any]:
  """Describes an embedding in values for JSON, which its files contain.

  They are those of `model_card.of`, what goes in and comes out, and the run.
  `preprocessing` is of image files, before the program. `normalisation` has the
  place of the normalisation, 'in the program' or 'before the program'. `source`
  and `world_seed` are present for synthetic training images only.
  """
  config, received = embedding.config, embedding.received
  ranked, card = config.evaluation, model_card.of(config)
  inputs = {name: _array(one) for name, one in embedding.inputs.items()}
  inputs[IMAGES] |= {
    'layout': received.layout,
    'channels': _order(embedding),
    'values': received.text(embedding.normalisation),
  }
  if MODALITIES in inputs:
    inputs[MODALITIES] |= {'values': '0 visible, 1 infrared'}
  before = received.before(embedding.normalisation)
  mean, std, _ = before or embedding.normalisation
  interface = {
    'summary': _summary(embedding),
    'inputs': inputs,
    'output': {OUTPUT: _array(embedding.output)},
  }
  return (
    interface
    | card
    | {
      'embedding': card['embedding']
      | {
        'batch_stats': ranked.batch_stats
        if ranked.batch_stats in source_stats.MEASURED
        else 'running',
        'unit_length': False,
        'dtype': embedding.dtype,
      },
      'run': (embedding.run or {})
      | {'weights_sha256': trees.digest(embedding.variables)},
      'normalisation': card['normalisation']
      | {
        'mean': list(mean),
        'std': list(std),
        'place': f'{"before" if before else "in"} the program',
      },
      'versions': {
        'fedreid_jax': __version__,
        'jax': jax.__version__,
      },
    }
  )


def _run(config: Config, step: int, name: str, workdir: Path) -> dict[str, Any]:
  path = workdir / run_files.DESCRIBED
  described = recorder.read_object(path, earlier_data.OWN)
  digests = {
    name: described[name]
    for name in (earlier_data.OWN, earlier_data.EARLIER)
    if name in described  # a run of an earlier version has no earlier ones
  }
  resolved = recorder.read_object(workdir / run_files.CONFIG)
  return {
    'recipe': config.name,
    'components': list(config.components),
    'seed': config.seed,
    'rounds': step,
    'model': name,
    'config_sha256': run_files.digests(resolved)[-1],  # of all fields
    **digests,
  }


def _summary(embedding: Embedding) -> str:
  metric = embedding.config.evaluation.metric
  arrays = ', '.join(
    f'{name} {_text(one)}' for name, one in embedding.inputs.items()
  )
  values = embedding.received.text(embedding.normalisation)
  return (
    f'{arrays} ({_order(embedding)}, {values}) -> '
    f'{OUTPUT} {_text(embedding.output)}, to be compared by {metric} distance'
  )


def _order(embedding: Embedding) -> str:
  return _ORDERS[embedding.image_shape[-1]]


def _array(one: jax.ShapeDtypeStruct) -> dict[str, Any]:
  shape = [n if isinstance(n, int) else BATCH for n in one.shape]
  return {'shape': shape, 'dtype': str(one.dtype)}


def _text(one: jax.ShapeDtypeStruct) -> str:
  return f'{one.dtype} [{", ".join(map(str, _array(one)["shape"]))}]'
