"""Rounds on tracklets, against rounds on single images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.config import parsing, recipes, schema, validation
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.round import compose

FRAMES = 3


def repeated(client):
  """The client with every image as a tracklet of equal frames."""
  pixels = client.images().repeat(FRAMES + 1, axis=0)
  columns = {
    name: getattr(client, name).repeat(FRAMES + 1)
    for name in ('labels', 'cameras', 'modalities')
  }
  numbers = np.arange(client.num_images, dtype=np.int32).repeat(FRAMES + 1)
  return client._replace(images=lambda: pixels, tracklets=numbers, **columns)


@pytest.mark.parametrize(
  ('sampler', 'names'),
  [('pk', ('fedavg', 'dppt')), ('uniform', ('fedavg', 'moon'))],
)
def test_equal_frames_train_as_one_image(sampler, names):
  """The draws of tracklets come first, so that both have the same plan."""
  clients = tuple(
    toy.toy_client(name, 12, 3) for name in ('ash', 'birch', 'cedar')
  )
  config = toy.replaced(
    toy.toy_config(),
    {
      'local.sampler': sampler,
      'augment.pad': 0,
      'augment.flip': 0.0,
      'optim.lr': 0.02,
      'data.labels': 'max',
    },
  )
  found = []
  for frames, own in (1, clients), (FRAMES, tuple(map(repeated, clients))):
    one = toy.replaced(config, {'local.frames': frames})
    components = compose.load(names, {}, algorithms)
    rounds, variables, _ = toy.make_rounds(one, own, components)
    server, _, _ = toy.run(rounds, variables, 2)
    found.append(server.shared)
    moved = [np.abs(x[0] - variables[n]).max() for n, x in found[-1].items()]
    assert max(moved) > 1e-2
  toy.assert_close_trees(*found, 2e-4)


def in_parts():
  """A component that averages the gradients of two parts of a batch."""

  def gradient(params, ctx):
    found = []
    for first in (0, 2):
      part = jax.value_and_grad(ctx.loss, has_aux=True)
      (_, metrics), grads = part(params, jnp.int32(first), 2)
      found.append((grads, metrics))
    return jax.tree.map(lambda *x: sum(x) / 2, *found)

  return Component('in_parts', client=ClientHooks(gradient=gradient))


def test_parts_of_a_batch_are_whole_tracklets():
  clients = (toy.toy_client('ash', 12, 3), toy.toy_client('birch', 12, 3))
  config = toy.replaced(
    toy.toy_config(),
    {
      'local.sampler': 'pk',
      'augment.pad': 0,
      'augment.flip': 0.0,
      'optim.lr': 0.2,
    },
  )
  found = []
  for frames, own in (1, clients), (FRAMES, tuple(map(repeated, clients))):
    one = toy.replaced(config, {'local.frames': frames})
    components = (*compose.load(('fedavg',), {}, algorithms), in_parts())
    rounds, variables, _ = toy.make_rounds(one, own, components)
    server, _, _ = toy.run(rounds, variables, 1)
    # As shares of the largest change, which is small in one round.
    moved = {n: x[0] - variables[n] for n, x in server.shared.items()}
    most = max(np.abs(x).max() for x in moved.values())
    assert most > 1e-4
    found.append({n: x / most for n, x in moved.items()})
  toy.assert_close_trees(*found, 0.01)


def test_guarantees_of_images_refuse_tracklets():
  config = schema.default()
  config.components = ('fedavg',)
  config.local.frames, config.local.sampler = 2, 'poisson'
  with pytest.raises(errors.ConfigError, match='draws images, not tracklets'):
    validation.validate(config)


@pytest.mark.parametrize(
  'pairs, text',
  [
    (('data.client_split=iid',), 'divides the frames of a tracklet'),
    (
      ('data.poison=shuffle', 'data.poisoned=("a",)'),
      "'shuffle' poisons images, not tracklets",
    ),
  ],
)
def test_what_knows_images_only_refuses_tracklets(pairs, text):
  config = parsing.change(schema.default(), ['local.frames=2', *pairs])
  with pytest.raises(errors.ConfigError, match=text):
    validation.validate(config)


@pytest.mark.parametrize('local', ['dns', 'dppt'])
def test_methods_of_single_images_are_refused(local):
  config = recipes.recipe('dppt', f'vcm,local={local}')
  if local == 'dppt':
    validation.validate(config)
    return
  with pytest.raises(errors.ConfigError) as caught:
    validation.validate(config)
  line = caught.value.line()
  assert 'dns trains on single images, not on tracklets' in line
  assert 'local.frames' in line and '\n' not in line


def test_presets_of_l2rw_plus():
  vcm = validation.validate(recipes.recipe('dppt', 'vcm'))
  assert vcm.local.frames == 6 and vcm.rounds == 100
  assert (vcm.local.batch, vcm.local.identities) == (32, 8)
  assert vcm.optim.points == ((0.0, 1e-4), (16.0, 1.0), (100.0, 0.0))
  assert vcm.data.targets == ('hitsz-vcm:frames=6',)
  bupt = validation.validate(recipes.recipe('dppt', 'bupt'))
  assert bupt.local.frames == 10 and bupt.local.sampler == 'pk_modality'
  assert (bupt.local.batch, bupt.local.identities) == (32, 16)
  for config in (vcm, bupt):
    assert (config.data.height, config.data.width) == (288, 144)
    assert config.optim.lr == 0.2
    assert config.data.client_split == 'camera_independent'
