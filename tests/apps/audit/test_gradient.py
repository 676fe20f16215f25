import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_run

from fedreid_jax import errors
from fedreid_jax.apps.audit import gradient as gradient_audit
from fedreid_jax.apps.audit import gradient_search as search_lib
from fedreid_jax.apps.audit.gradient import Identified, Inverted
from fedreid_jax.apps.audit.gradient_search import Search, Sent
from fedreid_jax.core import trees

SHORT = Search(steps=8, starts=1)


@pytest.fixture(scope='module')
def run():
  return toy_run.toy_run()


@pytest.mark.slow
def test_audit_of_a_run(run):
  client = run.client('birch')
  found = gradient_audit.audit(run, client, 2, SHORT, run)
  assert len(found.gains) == 2 and found.labels == (0, 1)
  assert found.gain == pytest.approx(np.mean(found.gains))
  assert found.interval[0] < found.gain < found.interval[1]
  assert found.originals.shape == found.found.shape == (2, 8, 8, 1)
  np.testing.assert_array_equal(found.originals[0], client.images()[0])
  # Eight steps are too few for the positive control.
  assert any('the positive control' in message for message in found.failed)


@pytest.mark.slow
def test_audit_of_gradients_of_two_images_with_noise(run):
  client = run.client('birch')
  sent = Sent(images=2, noise=0.5)
  found = gradient_audit.audit(run, client, 3, SHORT, run, sent)
  assert found.labels == (0, 1) and len(found.gains) == 2
  assert found.found.shape == (2, 8, 8, 1)
  assert found.noisy is not None and found.noisy < found.positive


def test_a_clipped_gradient_is_the_mean_of_directions():
  """Gradients of w and v with x = 3 and y = 4, and of x = 0 and y = -2."""

  def gradient(x, y):
    return {'w': x.sum(keepdims=True), 'v': y.sum(keepdims=True)}

  mean = search_lib.clipped(gradient)
  found = mean(jnp.asarray([3.0, 0.0]), jnp.asarray([4.0, -2.0]))
  assert found['w'] == pytest.approx(0.3) and found['v'] == pytest.approx(-0.1)


def test_noise_is_that_of_a_sum_divided_by_its_images():
  zeros = {'a': jnp.zeros(4000), 'b': jnp.ones(4000)}
  sent = Sent(images=4, noise=2.0)
  found = search_lib.noisy(zeros, sent, jax.random.key(0))
  parts = np.stack([found['a'], found['b'] - 1])
  assert parts.std(1) == pytest.approx(0.5, rel=0.05)
  assert abs(np.corrcoef(parts)[0, 1]) < 0.05


def test_the_classifier_that_is_not_shared_is_a_random_one(run):
  wanted = search_lib.observed(run, 3)
  x = gradient_audit.pixels(run.client('birch').images()[:1])
  shared = set(trees.trainable(run.variables)[0])
  assert set(jax.eval_shape(wanted, x, jnp.asarray([0]))) == shared
  other = search_lib.observed(run, 9)
  many = jax.eval_shape(other, x, jnp.asarray([8]))
  classifier = {n for n in shared if n.startswith(search_lib.CLASSIFIER)}
  assert classifier and set(many) == shared - classifier


def test_reconstructions_lead_to_their_persons(run):
  client = run.client('birch')  # 14 images, persons 0, 1, 2, 0, ...
  images, rows = client.images(), np.asarray([0, 1, 2])
  # The gallery has copies of the attacked images, in rows 3 to 5.
  copies = client._replace(images=lambda: images[np.arange(14) % 3])
  found = gradient_audit.identify(run, copies, rows, images[rows])
  assert found.rank1 == found.real == 1
  assert found.interval == pytest.approx((0.292, 1.0), abs=1e-3)
  assert found.chance == pytest.approx((4 + 4 + 3) / 33)
  wrong = images[np.asarray([1, 2, 0])]
  found = gradient_audit.identify(run, copies, rows, wrong)
  assert (found.rank1, found.real) == (0, 1)


def test_persons_with_one_image_are_not_attacked(run):
  client = run.client('birch')
  single = client._replace(labels=np.arange(14, dtype=np.int32))
  with pytest.raises(errors.ConfigError, match='fewer than 2 persons'):
    gradient_audit.audit(run, single, 2, SHORT, run)
  with pytest.raises(errors.ConfigError, match='fewer than 4 persons'):
    gradient_audit.audit(run, client, 8, SHORT, run, Sent(images=4))


@pytest.mark.parametrize(
  'positive, negative, message',
  [(9.9, -1.0, 'reaches 9.9 dB'), (12.0, 0.1, 'random gradient reaches 0.1')],
)
def test_failed_controls(positive, negative, message):
  (found,) = gradient_audit.failed(positive, negative)
  assert message in found
  assert gradient_audit.failed(10.0, 0.0) == ()


def result(number):
  images = np.zeros((number, 8, 4, 3), np.uint8)
  return Inverted(
    gains=tuple(float(k) for k in range(number)),
    gain=1.0,
    interval=(0.0, 2.0),
    positive=17.8,
    noisy=None,
    negative=-6.1,
    failed=(),
    persons=Identified(0.5, (0.1, 0.9), 1.0, 0.1),
    labels=tuple(range(10, 10 + number)),
    originals=images,
    found=images,
    control=images[:2],
    random=images[0],
  )


@pytest.mark.parametrize('number, height', [(2, 2), (5, 3), (8, 4)])
def test_every_image_is_beside_its_reconstruction(number, height):
  figure = gradient_audit.draw(result(number), 'title')
  words = [axes.get_xlabel() for axes in figure.axes]
  assert len(words) == 6 * height
  for k in range(number):
    place = words.index(f'person {10 + k}')
    assert words[place + 1] == f'+{k}.0 dB'
  assert words[4:6] == ['sigmoids', '+17.8 dB']
  assert words[10:12] == ['random', '-6.1 dB']
