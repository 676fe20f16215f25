import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms import ccst
from fedreid_jax.config import recipes, validation
from fedreid_jax.core.types import Batch, Outputs
from fedreid_jax.method.component import Participants
from fedreid_jax.method.contexts import LossCtx, ReceiveCtx, RoundEndCtx
from fedreid_jax.models.layers import styles
from fedreid_jax.models.layers.styles import Style
from fedreid_jax.round import compose

MADE = ccst.make()
NUM, SIZE = 4, 6  # clients, images


def outputs_of(maps):
  """The outputs of a network whose maps are given, `[B, h, w, D]`."""
  return Outputs(*[None] * 3, {styles.TRANSFER: styles.style_of(maps)})


def batch_of(num, valid=None):
  column = jnp.zeros(num, jnp.int32)
  valid = column == 0 if valid is None else jnp.asarray(valid)
  return Batch(None, column, column, column, valid)


def sent(*batches):
  """The message of a client from batches of (maps, valid)."""
  fold, seen = MADE.client.data_pass, None
  for maps, valid in batches:
    outputs = outputs_of(jnp.asarray(maps, jnp.float32))
    if seen is None:
      seen = fold.init(outputs, None)
    seen = fold.update(seen, outputs, batch_of(len(maps), valid))
  ctx = handmade.context(RoundEndCtx, data_pass=seen)
  return np.asarray(MADE.client.round_end((), ctx)[1])


def test_a_worked_style():
  """Two images of two pixels, 1 3 and 5 7: mean 4, variance 5."""
  maps = np.array([1.0, 3, 5, 7]).reshape(2, 2, 1, 1)
  np.testing.assert_allclose(
    sent((maps, [True, True])), [[4.0], [np.sqrt(5)]], rtol=1e-5
  )


def test_the_style_is_that_of_all_pixels_of_all_images():
  """As the released code: sums of values and of squares, in float64."""
  rng = np.random.default_rng(0)
  maps = rng.normal(3.0, 2.0, (7, 3, 2, 5)) + np.arange(5)
  padded = np.concatenate([maps[4:], np.full((1, 3, 2, 5), 1e3)])
  found = sent((maps[:4], [True] * 4), (padded, [True] * 3 + [False]))
  count = 7 * 3 * 2
  mean = maps.sum((0, 1, 2)) / count
  var = (maps**2).sum((0, 1, 2)) / count - mean**2
  np.testing.assert_allclose(found[0], mean, rtol=1e-5)
  np.testing.assert_allclose(found[1], np.sqrt(var + 1e-5), rtol=1e-5)
  # A mean of the images' own deviations would be another style.
  each = maps.std((1, 2)).mean(0)
  assert abs(found[1] - each).max() > 0.05


def test_the_bank_keeps_the_style_of_a_lost_upload():
  bank = jnp.arange(NUM * 2.0).reshape(NUM, 2, 1)
  messages = -jnp.ones((3, 2, 1))
  ctx = ReceiveCtx(jnp.array([2, 0, -1]))
  valid = jnp.array([True, False, False])
  found = MADE.server.receive(bank, messages, valid, ctx)
  np.testing.assert_array_equal(found, bank.at[2].set(-1.0))
  assert MADE.server.message(found) is found


def test_others_are_different_clients_in_a_random_order():
  draw = jax.vmap(lambda key: ccst.draw_others(key, jnp.int32(2), SIZE, NUM))
  found = np.asarray(draw(jax.random.split(jax.random.key(0), 100)))
  assert (np.sort(found, axis=2) == np.arange(NUM)).all()
  assert (found[..., -1] == 2).all()
  first = found[..., 0].ravel()
  counts = np.bincount(first, minlength=NUM) / len(first)
  np.testing.assert_allclose(counts[[0, 1, 3]], 1 / 3, atol=0.08)


class Recorder:
  """A network whose feature is the style that it is given."""

  def __init__(self):
    self.calls = []

  def apply(self, variables, images, **_):
    path = f'{styles.STYLES}/backbone/{styles.TRANSFER}'
    given = variables[f'{path}/mean'], variables[f'{path}/std']
    self.calls.append(given)
    feature = images * given[1] + given[0]
    return Outputs(feature, feature, feature, {}), {}


def step(k, own=1, num=NUM, key=0):
  """(loss, metrics, styles that the network was given in each pass)."""
  rng = np.random.default_rng(0)
  bank = jnp.asarray(rng.uniform(1, 2, (num, 2, 3)), jnp.float32)
  network = Recorder()
  images = jnp.asarray(rng.normal(size=(SIZE, 3)), jnp.float32)
  column = jnp.zeros(SIZE, jnp.int32)
  one = jnp.ones((SIZE, 3))
  ctx = handmade.context(
    LossCtx,
    message=bank,
    model=network,
    key=jax.random.key(key),
    task=handmade.task(index=own),
    batch=Batch(images, column, column, column, column == 0),
    outputs=Outputs(images, images, images, {styles.TRANSFER: Style(one, one)}),
    objective=lambda outputs, batch: (outputs.feature.sum(), {}),
  )
  made = ccst.make(ccst.Options(k=k))
  value, metrics = made.client.loss({}, (), ctx)
  return value, metrics, network.calls, bank, images


@pytest.mark.parametrize('k, copies', [(1, 0), (2, 1), (3, 2), (4, 3), (9, 3)])
def test_every_image_has_k_styles_with_its_own(k, copies):
  value, metrics, calls, bank, images = step(k)
  assert len(calls) == copies
  total, used = 0.0, []
  for mean, std in calls:
    # Mean and deviation of a row are of one client, and not of the own one.
    rows = [
      [int(j) for j in range(NUM) if np.allclose(bank[j, 0], m)] for m in mean
    ]
    rows = np.array(rows)[:, 0]
    np.testing.assert_allclose(bank[rows, 1], std)
    assert not (rows == 1).any()
    used.append(rows)
    total += float((images * std + mean).sum())
  for image in np.array(used).T:
    assert len(set(image)) == copies
  # With L_ori, which the step adds, it is the mean over all styles.
  original = float(images.sum())
  wanted = (original + total) / (copies + 1)
  np.testing.assert_allclose(value + original, wanted, rtol=1e-5)
  assert ('shift' in metrics) == (copies > 0)


def test_one_client_has_no_other_style():
  value, _, calls, _, _ = step(3, own=0, num=1)
  assert value == 0 and not calls


def test_clients_whose_style_is_that_of_one_person_are_refused(clients):
  one = clients[0]._replace(labels=np.zeros_like(clients[0].labels))
  with pytest.raises(errors.DataError, match='ccst.min_identities'):
    MADE.bind(Participants((one,), 0, 1))
  ccst.make(ccst.Options(min_identities=1)).bind(Participants((one,), 0, 1))
  assert 'mean' in MADE.released  # DP-SGD refuses it with this text


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'ccst.stage': 5}, 'stage 5 of a network with 4'),
  ],
)
def test_configurations_that_cannot_run(changes, message):
  config = recipes.recipe('ccst')
  config.update_from_flattened_dict(changes)
  with pytest.raises(errors.ConfigError, match=message):
    validation.validate(config)


@pytest.mark.slow
def test_styles_travel_before_the_first_round(config, clients):
  config = toy.replaced(config, {'local.sampler': 'pk'})
  chosen = compose.load(('fedpav', 'ccst'), {}, algorithms)
  executor, variables, _ = toy.make_rounds(config, clients[:3], chosen)
  server, _, logs = toy.run(executor, variables, 2)
  bank = server.states['ccst']
  assert bank.shape == (3, 2, 4) and (bank[:, 1] > 0).all()
  first = logs[0]['metrics']
  assert 0 < first['ccst_transferred'] < 10 and first['ccst_shift'] > 0
