"""An untrained run for tests of figures and attacks, and features of runs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

import fedreid_jax as fr
from fedreid_jax.data import augment
from fedreid_jax.evaluation import features
from fedreid_jax.evaluation.features import Model
from fedreid_jax.models import networks
from fedreid_jax.round import placement
from fedreid_jax.training import loaded_run


@functools.cache
def network():
  """Returns (model, variables), running statistics other than 0 and 1."""
  model = networks.wrap(
    networks.build(toy.toy_config().model, 3), toy.IMAGE_SHAPE
  )
  variables = jax.jit(model.init)(jax.random.key(0))
  rng = np.random.default_rng(0)
  for name, leaf in variables.items():
    kind = name.rpartition('/')[2]
    if kind in ('mean', 'var'):
      values = 0.2 * rng.normal(size=leaf.shape) + (kind == 'var')
      variables[name] = jnp.asarray(values, jnp.float32)
  return model, variables


def model_of(config, embed):
  """Returns the model of evaluators whose features are `embed(pixels)`."""
  return Model(
    config, [({},)], lambda _: lambda _, pixels, *__: embed(pixels), 'embedding'
  )


def ranked(workdir):
  """Returns the images of the first target of a run and their features."""
  found = []
  embed = Model.features

  def keep(model, target):
    found.append((target.images, embed(model, target)))
    return found[-1][1]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Model, 'features', keep)
    fr.evaluate(workdir)
  return found[0]


def toy_run(
  components=('fedpav', 'dfh'), infrared=False
) -> loaded_run.LoadedRun:
  """Returns a run of two clients and one target.

  Args:
    components: of its method.
    infrared: whether every second image is.
  """
  config = toy.replaced(
    toy.toy_config(),
    {'name': 'toy', 'components': components, 'evaluation.batch': 8},
  )
  clients = tuple(toy.toy_client(name, toy.SIZES[name]) for name in toy.SIZES)
  if infrared:
    clients = tuple(c._replace(modalities=c.cameras) for c in clients)
  images = toy.toy_federation(clients)
  model, variables = network()
  transforms = augment.make(config.augment, images.mean, images.std)
  extractor = functools.partial(
    features.make_extractor,
    model,
    transforms.test,
    placement.make_mesh(1),
    batch=8,
  )
  return loaded_run.LoadedRun(
    config=config,
    step=1,
    name='global',
    model=model,
    variables=variables,
    federation=images,
    transforms=transforms,
    extractor=functools.cache(extractor),
    states={},
  )
