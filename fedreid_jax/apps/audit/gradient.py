"""Gradient inversion: images from the gradient that a client computes.

The attacker has the gradient of one image or of a few images of different
persons (`gradient_search`), as a client sends it in FedSGD. The result is an
upper bound, since the classifiers of re-identification stay at the clients, and
clients send the sum of many steps on many images.

The positive control is an untrained network of convolutions with sigmoids, as
in Zhu et al., "Deep leakage from gradients" (NeurIPS 2019), where the attack is
known to succeed; with noise it is also attacked with this noise on its
gradient. The negative control attacks the network of the run with a random
gradient of the same norm.

Success is the PSNR above that of a grey image, and the rate at which a model
retrieves the person: a reconstruction may differ from the image in its pixels
and still show who the person is. The reconstructions are queries, and a model,
the judge, ranks the other images of the client. The judge should be another run
than the attacked one, with other initial weights.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Float, Int, UInt8
from scipy import stats

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection, gradient_search
from fedreid_jax.apps.audit.gradient_search import Search, Sent
from fedreid_jax.core import trees
from fedreid_jax.core.types import Array, ClientData, Flat
from fedreid_jax.figures import canvas
from fedreid_jax.figures.canvas import Photo
from fedreid_jax.losses import identity
from fedreid_jax.training.loaded_run import LoadedRun

GAIN = 10.0  # dB above grey that the positive control must reach
GREY = 0.5
ONE = Sent()  # the gradient of an image, without noise
SHOWN = 16  # images in the figure

# The network of the positive control.
SIZE = 32, 16  # of the image
CLASSES = 10
CHANNELS = 12


class Identified(NamedTuple):
  """Retrieval with reconstructions as queries, in shares of 1."""

  rank1: float  # queries whose nearest image shows the person
  interval: tuple[float, float]  # of `rank1`, 95 %, Clopper-Pearson
  real: float  # `rank1` of the attacked images themselves
  chance: float  # images that show the person, mean over queries


class Inverted(NamedTuple):
  """Results of the audit."""

  gains: tuple[float, ...]  # PSNR of each image above that of grey, dB
  gain: float  # mean of the gains
  # 95 % interval of the mean over images, by Student's t.
  interval: tuple[float, float]
  positive: float  # gain of the positive control
  # Gain of the positive control with noise, None without noise.
  noisy: float | None
  negative: float  # gain of the negative control
  failed: tuple[str, ...]  # controls that failed
  persons: Identified  # retrieval of the persons by the reconstructions
  labels: tuple[int, ...]  # person of each image
  originals: UInt8[np.ndarray, 'B H W ch']  # attacked images
  found: UInt8[np.ndarray, 'B H W ch']  # their reconstructions
  # Original and reconstruction of the positive control.
  control: UInt8[np.ndarray, '2 h w ch']
  random: UInt8[np.ndarray, 'H W ch']  # reconstruction of the negative control


def audit(
  run: LoadedRun,
  client: ClientData,
  num: int,
  search: Search,
  by: LoadedRun,
  sent: Sent = ONE,
) -> Inverted:
  """Attacks the gradients of images of a client's first `num` persons.

  `num` is two at least. The model of the run `by` is the judge.

  Raises:
    ConfigError: if too few persons of the client have two images.
  """
  rows = _attacked(client, num, sent.images)
  labels = client.labels[rows]
  originals = np.asarray(client.images()[rows])
  # No attack on a gradient of the images has the number `num`, so the control
  # starts from other noise.
  reconstructed, noise = _reconstruct(
    run, client, originals, labels, search, sent, num
  )
  gains = [
    gain(pixels(own), one)
    for own, one in zip(originals, reconstructed, strict=True)
  ]
  found = photos(reconstructed)
  first = pixels(originals[:1])
  control = attack_sigmoids(first, search)
  noisy = None
  if sent.noise:
    noisy = gain(*attack_sigmoids(first, search, sent.noise))
  positive = gain(control[0], control[1])
  negative = gain(pixels(originals[0]), noise)
  return Inverted(
    gains=tuple(gains),
    gain=float(np.mean(gains)),
    interval=_interval(gains),
    positive=positive,
    noisy=noisy,
    negative=negative,
    failed=failed(positive, negative),
    persons=identify(by, client, rows, found),
    labels=tuple(int(label) for label in labels),
    originals=originals,
    found=found,
    control=photos(control),
    random=photos(noise),
  )


def _reconstruct(
  run: LoadedRun,
  client: ClientData,
  originals: np.ndarray,
  labels: np.ndarray,
  search: Search,
  sent: Sent,
  control: int,
) -> tuple[np.ndarray, np.ndarray]:
  gradient = gradient_search.observed(run, client.num_identities)
  if sent.noise:
    gradient = gradient_search.clipped(gradient)
  observe = jax.jit(gradient)
  # Blocks have one shape, so that the attack is compiled once.
  shape = sent.images, *originals.shape[1:]
  attack = gradient_search.make(gradient, shape, search)
  key = jax.random.key(search.seed)
  blocks = np.arange(len(labels)).reshape(-1, sent.images)
  answers: list[np.ndarray] = []
  for k, block in enumerate(blocks):
    y = jnp.asarray(labels[block])
    wanted = observe(pixels(originals[block]), y)
    if sent.noise:
      wanted = gradient_search.noisy(wanted, sent, jax.random.fold_in(key, k))
    answers.append(attack(wanted, y, k)[0])
  y = jnp.asarray(labels[blocks[0]])
  wanted = observe(pixels(originals[blocks[0]]), y)
  other = gradient_search.random_like(wanted, search.seed)
  return np.concatenate(answers), attack(other, y, control)[0][0]


def _attacked(
  client: ClientData, num: int, batch: int
) -> Int[np.ndarray, ' B']:
  """An image of each of `num` persons, or of fewer, in full batches."""
  _, first, counts = np.unique(
    client.labels, return_index=True, return_counts=True
  )
  # The judge needs another image of the person.
  rows = first[counts > 1][:num]
  rows = rows[: len(rows) // batch * batch]
  least = max(batch, 2)
  if len(rows) < least:
    raise errors.ConfigError(
      f'fewer than {least} persons of {client.name} have two images',
      '--source',
      'give a client with more images, or fewer with --batch',
    )
  return rows


def failed(positive: float, negative: float) -> tuple[str, ...]:
  """The controls that failed, from the gains of both."""
  found: list[str] = []
  # Gains that are no numbers fail as well.
  if not positive >= GAIN:
    found.append(
      f'the positive control reaches {positive:.1f} dB above grey, not {GAIN:g}'
    )
  if not negative <= 0:
    found.append(f'a random gradient reaches {negative:.1f} dB above grey')
  return tuple(found)


def _interval(gains: Sequence[float]) -> tuple[float, float]:
  mean, error = np.mean(gains), stats.sem(gains)
  width = stats.t.ppf(0.5 + detection.LEVEL / 2, len(gains) - 1) * error
  return float(mean - width), float(mean + width)


def gain(
  original: Float[Array | np.ndarray, 'H W ch'],
  found: Float[Array | np.ndarray, 'H W ch'],
) -> float:
  """The PSNR of a reconstruction above that of grey, in dB."""
  own, one = np.asarray(original), np.asarray(found)
  # An exact reconstruction has a finite PSNR.
  error = max(float(np.square(own - one).mean()), 1e-10)
  return float(10 * np.log10(np.square(own - GREY).mean() / error))


def pixels(images: UInt8[np.ndarray, '*shape']) -> Float[Array, '*shape']:
  """Returns photos as float32 pixels in 0..1."""
  return jnp.asarray(images, jnp.float32) / 255.0


def photos(images: Float[np.ndarray, '*shape']) -> UInt8[np.ndarray, '*shape']:
  """Returns pixels in 0..1 as photos in 0..255, clipped and rounded."""
  return np.round(np.clip(images, 0.0, 1.0) * 255.0).astype(np.uint8)


def identify(
  by: LoadedRun,
  client: ClientData,
  rows: Int[np.ndarray, ' B'],
  found: UInt8[np.ndarray, 'B H W ch'],
) -> Identified:
  """Measures how often reconstructions retrieve persons with other images."""
  every = by.ranked(client.images(), client.modalities)
  # The attacked images leave the gallery, in which they would find themselves.
  others = np.setdiff1d(np.arange(len(every)), rows)
  wanted, known = client.labels[rows], client.labels[others]

  def right(queries: np.ndarray) -> int:
    nearest = by.distances(queries, every[others]).argmin(axis=1)
    return int((known[nearest] == wanted).sum())

  hits = right(by.ranked(found, client.modalities[rows]))
  return Identified(
    rank1=hits / len(rows),
    interval=detection.proportion(hits, len(rows)),
    real=right(every[rows]) / len(rows),
    chance=float((known[None] == wanted[:, None]).mean()),
  )


class Sigmoids(nn.Module):
  """Convolutions with sigmoids and a linear classifier."""

  @nn.compact
  def __call__(self, x: Float[Array, 'B H W ch']) -> Float[Array, 'B C']:
    """Maps pixels to scores of classes."""

    def init(key, shape, dtype=jnp.float32):
      return jax.random.uniform(key, shape, dtype, -0.5, 0.5)

    # Sigmoids are smooth, so that the gradient determines the image. A failure
    # with ReLU would not show whether the attack or the network is the reason.
    for _ in range(3):
      convolution = nn.Conv(
        CHANNELS, (5, 5), 2, kernel_init=init, bias_init=init
      )
      x = nn.sigmoid(convolution(x))
    x = x.reshape(len(x), -1)
    return nn.Dense(CLASSES, kernel_init=init, bias_init=init)(x)


def attack_sigmoids(
  image: Float[Array, '1 H W ch'], search: Search, noise: float = 0.0
) -> Float[np.ndarray, '2 h w ch']:
  """The positive control: (image at 32 x 16, its reconstruction), 0..1."""
  small = jax.image.resize(image, (1, *SIZE, image.shape[3]), 'linear')
  network = Sigmoids()
  variables = trees.flatten(
    jax.jit(network.init)(jax.random.key(search.seed), small)
  )

  def gradient(x: Array, labels: Array) -> Flat:
    def loss(own: Flat) -> Array:
      scores = network.apply(trees.unflatten(own), x)
      assert isinstance(scores, jax.Array)
      return identity.cross_entropy(scores, labels, jnp.ones(1, bool))

    return jax.grad(loss)(variables)

  labels = jnp.zeros(1, jnp.int32)
  own = gradient_search.clipped(gradient) if noise else gradient
  wanted = jax.jit(own)(small, labels)
  if noise:
    key = jax.random.key(search.seed)
    wanted = gradient_search.noisy(wanted, Sent(noise=noise), key)
  attack = gradient_search.make(gradient, small.shape, search)
  return np.concatenate([np.asarray(small), attack(wanted, labels, 0)[0]])


def draw(result: Inverted, title: str) -> Any:
  """Draws images beside their reconstructions, and both controls."""

  def pair(image, word, other, decibels) -> tuple[Photo, Photo]:
    return Photo(image, None, word), Photo(other, None, f'{decibels:+.1f} dB')

  pairs = [
    pair(
      result.originals[k],
      f'person {result.labels[k]}',
      result.found[k],
      result.gains[k],
    )
    for k in range(min(len(result.labels), SHOWN))
  ]
  controls = [
    pair(result.control[0], 'sigmoids', result.control[1], result.positive),
    pair(result.originals[0], 'random', result.random, result.negative),
  ]
  height = max(-(-len(pairs) // 2), len(controls))
  rows: list[list[Photo | None]] = [[None] * 6 for _ in range(height)]
  for k, photo in enumerate(pairs):
    side = 2 * (k // height)
    rows[k % height][side : side + 2] = photo
  for k, photo in enumerate(controls):
    rows[k][4:] = photo
  titles = (*('image', 'from its\ngradient') * 2, 'image', 'control')
  return canvas.sheet(rows, titles, title, gaps=(2, 4))
