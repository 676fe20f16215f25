import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.algorithms import fedavg, fedpav, kd
from fedreid_jax.core import prng
from fedreid_jax.method.component import Participants

KERNEL, HEAD, MEAN = handmade.KERNEL, handmade.HEAD, handmade.MEAN
FEDAVG = fedavg.make()
PUBLIC = handmade.pixels(
  [[10, 0, 0], [0, 10, 0], [0, 0, 10], [10, 10, 0], [20, 0, 10]]
)
RULES = ('teacher_only', 'both', 'none')


def uploads(kernels, means=None, sizes=None):
  """Clients that send kernels `[K, 3, 2]` and a classifier of their own."""
  kernels = jnp.asarray(kernels, jnp.float32)
  num = len(kernels)
  scores = jnp.arange(num * 6.0).reshape(num, 2, 3)
  means = jnp.zeros((num, 2)) if means is None else means
  return handmade.uploads({KERNEL: kernels, HEAD: scores, MEAN: means}, sizes)


def serve(*rounds, owner=FEDAVG, first=0, **arguments):
  """The server's one model after distilling, rate 0.1 unless told."""
  made = kd.make(kd.Options(**{'batch': 2, 'lr': 0.1} | arguments))
  server, _ = handmade.serve(
    (owner, made), handmade.variables(9.0), *rounds, public=PUBLIC, first=first
  )
  return {n: x[0] for n, x in server.shared.items()}


def different(num=3):
  rng = np.random.default_rng(7)
  return uploads(
    rng.standard_normal((num, 3, 2)),
    0.3 * rng.standard_normal((num, 2)),
    sizes=np.arange(1, num + 1),
  )


def unit(x):
  return x / jnp.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize('normalise', RULES)
def test_an_epoch_by_hand(normalise):
  """Three steps of Nesterov with decay, the last of one image.

  Teachers use the moments of the batch, not their running mean, and count
  alike, whatever their size. They see the student's own view of each batch, a
  new one every step.
  """
  sent, round_, decay = different(), 2, 0.2
  found = serve(sent, first=round_, normalise=normalise, weight_decay=decay)
  base = prng.key(prng.data(0), prng.Stream.SERVER, round_)
  own = jax.random.fold_in(base, prng.component_uid('kd'))
  order_key, view_key = jax.random.split(own)
  order = jax.random.permutation(order_key, 5)

  share = np.array([1, 2, 3]) / 6
  kernel, mean, scores = (
    np.tensordot(share, sent.shared[n], 1) for n in (KERNEL, MEAN, HEAD)
  )
  moment = 0.0
  for i, rows in enumerate((order[:2], order[2:4], order[4:])):
    seen = handmade.train_transform(
      jax.random.fold_in(view_key, i), PUBLIC[rows]
    )
    x = np.asarray(seen).reshape(-1, 3)
    taught = [x @ w for w in sent.shared[KERNEL]]
    if normalise != 'none':
      taught = [unit(t) for t in taught]
    target = sum(taught) / 3

    def loss(w, x=x, target=target):
      said = unit(x @ w) if normalise == 'both' else x @ w
      return jnp.mean((said - target) ** 2)

    gradient = jax.grad(loss)(jnp.asarray(kernel)) + decay * kernel
    mean = 0.9 * mean + 0.1 * (x @ kernel).mean(axis=0)
    moment = 0.9 * moment + gradient
    kernel = kernel - 0.1 * (gradient + 0.9 * moment)
  np.testing.assert_allclose(found[KERNEL], kernel, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(found[MEAN], mean, rtol=1e-4, atol=1e-6)
  # no gradient, so no weight decay either
  np.testing.assert_allclose(found[HEAD], scores, rtol=1e-6)


W = np.array([[1.0, 0], [0, 1], [0.6, 0.8]])  # unit features of single pixels


@pytest.mark.parametrize(
  'normalise, kernels',
  [
    ('none', [W, -2 * W, 4 * W + 1]),
    ('both', [W, 2 * W, 6 * W]),
    ('teacher_only', [W, W, W]),
  ],
)
def test_a_student_that_is_the_mean_teacher_learns_nothing(normalise, kernels):
  made = kd.make(
    kd.Options(normalise=normalise, batch=3, lr=1.0, weight_decay=0.0)
  )
  server, _ = handmade.serve(
    (FEDAVG, made), handmade.variables(9.0), uploads(kernels), public=PUBLIC[:3]
  )
  expected = np.mean(kernels, axis=0)
  np.testing.assert_allclose(server.shared[KERNEL][0], expected, atol=1e-5)
  assert np.abs(server.shared[MEAN]).max() > 0.01


@pytest.mark.slow
def test_only_every_so_often():
  sent = different()
  undone, _ = handmade.serve((FEDAVG,), handmade.variables(9.0), sent)
  undone = {n: x[0] for n, x in undone.shared.items()}
  for first, due in ((0, False), (1, False), (2, True), (3, False), (5, True)):
    found = serve(sent, every=3, first=first)
    assert (found[KERNEL] != undone[KERNEL]).any() == due
    assert (found[MEAN] != undone[MEAN]).any() == due


def test_a_lost_upload_teaches_nobody():
  kernels = np.stack([W, np.full((3, 2), np.nan), 3 * W])
  found = serve(uploads(kernels), normalise='none', weight_decay=0.0)
  np.testing.assert_allclose(found[KERNEL], 2 * W, atol=1e-5)


def test_without_any_upload_the_server_keeps_its_model():
  sent = different().replace(finite=jnp.zeros(3, bool))
  found = serve(sent)
  toy.assert_equal_trees(found, jax.device_get(handmade.variables(9.0)))


def test_features_do_not_depend_on_a_classifier_that_stays():
  sent = different()
  kept = {n: x for n, x in sent.shared.items() if n != HEAD}
  found = serve(sent.replace(shared=kept), owner=fedpav.make())
  with_head = serve(sent)
  for name, leaf in found.items():
    np.testing.assert_allclose(leaf, with_head[name], atol=1e-6)


def test_public_images_must_fill_a_batch(clients):
  check = kd.make(kd.Options(batch=32)).bind
  check(Participants(clients, 32, 4))
  with pytest.raises(errors.ConfigError, match='data.public'):
    check(Participants(clients, 0, 4))
  with pytest.raises(errors.DataError, match='31 public images.*kd.batch'):
    check(Participants(clients, 31, 4))


def test_unknown_rule():
  with pytest.raises(errors.ConfigError, match='kd.normalise.*teacher_only'):
    kd.make(kd.Options(normalise='student'))
