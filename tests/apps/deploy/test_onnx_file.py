"""ONNX programs, run by ONNX Runtime, against the evaluation of the package."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_embedding
from jax import lax

from fedreid_jax import errors
from fedreid_jax.apps.deploy import (
  embedding,
  export_choices,
  image_input,
  onnx_file,
)

onnx = pytest.importorskip('onnx', reason='pip install .[export]')
pytest.importorskip('onnxruntime', reason='pip install .[export]')

ABOUT = {'summary': 'images -> embedding', 'run': {'rounds': 2}}


def written(found, tmp_path):
  """Returns the function that runs the file of an embedding."""
  path = tmp_path / 'program.onnx'
  path.write_bytes(onnx_file.encode(found, ABOUT))
  return onnx_file.reader(path)


@pytest.mark.usefixtures('short')
@toy_embedding.every_network
def test_every_network_gives_the_embedding_of_the_evaluation(name, tmp_path):
  found = toy_embedding.tiny(name, flip=name != 'resnet18')
  specific = name in toy_embedding.SPECIFIC
  assert [*found.inputs] == ['images', 'modalities'][: 1 + specific]
  wanted = toy_embedding.expected(found, 5)
  assert wanted.std() > 0.01
  run = written(found, tmp_path)
  inputs = toy_embedding.inputs(found, 5)
  for num in (1, 5):
    got = run(*(x[:num] for x in inputs))
    np.testing.assert_allclose(got, wanted[:num], rtol=0, atol=1e-4)


def sent_by_another_program(pixels, layout, values):
  """What the page says of the values, written without the package."""
  x = pixels if values == 'uint8' else pixels / 255.0
  mean, std = {
    'normalised': (toy_embedding.MEAN, toy_embedding.STD),
    'imagenet': ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
  }.get(values, (0, 1))
  if values != 'uint8':
    x = ((x - np.array(mean)) / std).astype(np.float32)
  return x if layout == 'nhwc' else np.moveaxis(x, 3, 1)


@pytest.mark.parametrize('layout', export_choices.LAYOUTS)
@pytest.mark.parametrize('values', export_choices.VALUES)
def test_images_in_every_form_give_the_embedding_of_the_evaluation(
  layout, values, tmp_path
):
  received = image_input.ImageInput(layout, values)
  found = toy_embedding.tiny('convnet', flip=True, received=received)
  wanted = toy_embedding.expected(found, 5)
  run = written(found, tmp_path)
  images = sent_by_another_program(toy_embedding.pixels(5), layout, values)
  assert images.dtype == (np.uint8 if values == 'uint8' else np.float32)
  for num in (1, 5):  # the number of images is free
    got = run(images[:num])
    np.testing.assert_allclose(got, wanted[:num], rtol=0, atol=1e-4)


def test_the_file_describes_itself():
  found = toy_embedding.tiny('convnet')
  model = onnx.load_from_string(onnx_file.encode(found, ABOUT))
  assert model.doc_string == ABOUT['summary']
  properties = {one.key: one.value for one in model.metadata_props}
  assert json.loads(properties['run']) == ABOUT['run']
  (images,), (output,) = model.graph.input, model.graph.output
  for one, name, sizes in (
    (images, 'images', ['b', 32, 16, 3]),
    (output, 'embedding', ['b', found.output.shape[1]]),
  ):
    dims = one.type.tensor_type.shape.dim
    assert one.name == name
    assert [d.dim_param or d.dim_value for d in dims] == sizes


def test_a_graph_is_in_the_layout_of_onnx_and_holds_weights_once(short):
  found = toy_embedding.tiny('resnet18', flip=True)
  content = onnx_file.encode(found, ABOUT)
  model = onnx.load_from_string(content)
  operators = [node.op_type for node in model.graph.node]
  assert operators.count('Conv') == 2 * (1 + 8 + 3)  # three shortcuts
  assert operators.count('Relu') == 2 * (1 + 8)
  assert operators.count('Transpose') <= 4
  weights = sum(x.nbytes for x in found.variables.values())
  assert len(content) < 1.3 * weights


def program(function):
  """Returns an embedding of a function of `[b, H, W, ch]`."""
  shape = (4, 6, 3)
  parts = embedding.trace(
    lambda variables, images, modalities: function(images), {}, shape
  )

  def evaluate(images, modalities):
    return np.asarray(jax.jit(function)(images))

  return embedding.Embedding(None, 0, '', 'float32', *parts, evaluate)


@pytest.mark.parametrize(
  'function',
  [
    lambda x: jnp.flip(x, (1, 2)),
    lambda x: x[:, ::2, 1::3],
    lambda x: x[:, :, 1:4, 0],
    lambda x: x[:, :, ::-1],
    lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0)), constant_values=3),
    lambda x: jnp.stack([x.max(3), x.min(3), x[..., 0]], 1),
    lambda x: jnp.concatenate(jnp.split(x, (1, 4), axis=2)[::-1], 2),
    lambda x: jnp.add(*jnp.unstack(x, axis=1)[1:3]),
    lambda x: jnp.clip(x.astype(jnp.float32), 3, 200) ** 3,
    lambda x: lax.rsqrt(x.sum((1, 2), jnp.float32) + 1) - 0.5,
    lambda x: jnp.einsum('bhwc,bhwd->bcd', *[x.astype(jnp.float32)] * 2),
    lambda x: jnp.concatenate([x, x]).reshape(2 * x.shape[0], -1)[:, :5],
    lambda x: jnp.arange(3.0) + jnp.concatenate([x, x])[:, 0, 0, :1],
    lambda x: jnp.where((x > 9) & ~(x == 12) | (x != 3), x, x - 1),
    lambda x: lax.reduce_window(
      x.astype(jnp.float32),
      -jnp.inf,
      lax.max,
      (1, 3, 2, 1),
      (1, 2, 1, 1),
      ((0, 0), (1, 1), (0, 1), (0, 0)),
    ),
    lambda x: lax.reduce_window(
      x.astype(jnp.float32),
      0.0,
      lax.add,
      (1, 3, 2, 1),
      (1, 2, 1, 1),
      ((0, 0), (1, 1), (0, 1), (0, 0)),
    ),
    lambda x: lax.erfc(x.astype(jnp.float32) / 100 - 1),
    lambda x: lax.conv_general_dilated(
      x.astype(jnp.float32),
      jnp.sin(jnp.arange(54.0)).reshape(3, 3, 1, 6),
      (1, 2),
      ((2, 1), (0, 3)),
      rhs_dilation=(1, 2),
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      feature_group_count=3,
    ),
  ],
)
def test_operations_against_jax(function, tmp_path):
  found = program(function)
  run = written(found, tmp_path)
  for num in (1, 4):
    images = toy_embedding.pixels(num, (4, 6, 3))
    wanted = found.evaluate(images, None)
    got = run(images)
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize(
  ('function', 'named'),
  [
    (lambda x: lax.cumsum(x, axis=1), "operation 'cumsum'"),
    (lambda x: jnp.bitwise_and(x, 3), 'and of uint8'),
    (lambda x: x.sum() + jnp.zeros(x.shape[0] ** 2), 'axis of length'),
  ],
)
def test_what_has_no_translation_is_named(function, named):
  with pytest.raises(errors.ConfigError, match=named):
    onnx_file.encode(program(function), ABOUT)
