"""Gradient inversion: images from the gradient that a client computes.

The attacker has the gradient of one image or of a few images of different
persons (`gradient_observed`), as a client sends it in FedSGD. The attacker also
knows the parameters, the identities and the classifier. The result is an upper
bound, since the classifiers of re-identification stay at the clients, and
clients send the sum of many steps on many images.

The positive control is an untrained network of three 5x5 convolutions with
sigmoids, where the attack is known to succeed. The negative control attacks the
network of the run with a random gradient of the same norm. With noise, the
positive control is also attacked with this noise on its gradient. Success is
the difference of the PSNR to that of a grey image, and the rate at which a
model retrieves the person (`gradient_identified`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt8
from scipy import stats

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection
from fedreid_jax.apps.audit.gradient import (
  gradient_control,
  gradient_identified,
  gradient_observed,
  gradient_search,
)
from fedreid_jax.apps.audit.gradient.gradient_identified import Identified
from fedreid_jax.apps.audit.gradient.gradient_observed import Sent
from fedreid_jax.apps.audit.gradient.gradient_search import Search
from fedreid_jax.core.types import Array, ClientData
from fedreid_jax.training.loaded_run import LoadedRun

GAIN = 10.0  # dB above grey that the positive control must reach
GREY = 0.5
ONE = Sent()  # the gradient of an image, without noise


class Inverted(NamedTuple):
  """Results of the audit.

  Attributes:
    gains: PSNR of each image above that of grey, dB.
    gain: mean of the gains.
    interval: 95 % interval of the mean over images, by Student's t.
    positive: gain of the positive control.
    noisy: gain of the positive control with noise, None without noise.
    negative: gain of the negative control.
    failed: controls that failed.
    persons: retrieval of the persons by the reconstructions.
    labels: person of each image.
    originals: attacked images.
    found: their reconstructions.
    control: original and reconstruction of the positive control.
    random: reconstruction of the negative control.
  """

  gains: tuple[float, ...]
  gain: float
  interval: tuple[float, float]
  positive: float
  noisy: float | None
  negative: float
  failed: tuple[str, ...]
  persons: Identified
  labels: tuple[int, ...]
  originals: UInt8[np.ndarray, 'B H W ch']
  found: UInt8[np.ndarray, 'B H W ch']
  control: UInt8[np.ndarray, '2 h w ch']
  random: UInt8[np.ndarray, 'H W ch']


def audit(
  run: LoadedRun,
  client: ClientData,
  num: int,
  search: Search,
  by: LoadedRun,
  sent: Sent = ONE,
) -> Inverted:
  """Attacks the gradients of images of a client.

  Args:
    run: the attacked model.
    client: client whose first persons are attacked.
    num: largest number of images, two at least.
    search: settings of the optimisation.
    by: run with the model that judges who the reconstructions show.
    sent: gradients that the client sends.

  Raises:
    ConfigError: if too few persons of the client have two images.
  """
  rows = _attacked(client, num, sent.images)
  labels = client.labels[rows]
  originals = np.asarray(client.images()[rows])
  blocks = np.arange(len(rows)).reshape(-1, sent.images)
  shape = sent.images, *run.federation.image_shape
  gradient = gradient_observed.of(run, client.num_identities)
  if sent.noise:
    gradient = gradient_observed.clipped(gradient)
  observe = jax.jit(gradient)
  attack = gradient_search.make(gradient, shape, search)
  key = jax.random.key(search.seed)
  # Blocks have one shape, so that the attack is compiled once.
  answers: list[np.ndarray] = []
  for k, block in enumerate(blocks):
    y = jnp.asarray(labels[block])
    wanted = observe(pixels(originals[block]), y)
    if sent.noise:
      wanted = gradient_observed.noisy(wanted, sent, jax.random.fold_in(key, k))
    answers.append(attack(wanted, y, k)[0])
  y = jnp.asarray(labels[blocks[0]])
  wanted = observe(pixels(originals[blocks[0]]), y)
  other = gradient_search.random_like(wanted, search.seed)
  # No block has the number `num`, so the control starts from other noise.
  noise, _ = attack(other, y, num)
  reconstructed = np.concatenate(answers)
  gains = [
    gain(pixels(own), one)
    for own, one in zip(originals, reconstructed, strict=True)
  ]
  found = photos(reconstructed)
  first = pixels(originals[:1])
  control = gradient_control.attack(first, search)
  noisy = None
  if sent.noise:
    noisy = gain(*gradient_control.attack(first, search, sent.noise))
  positive = gain(control[0], control[1])
  negative = gain(pixels(originals[0]), noise[0])
  return Inverted(
    gains=tuple(gains),
    gain=float(np.mean(gains)),
    interval=_interval(gains),
    positive=positive,
    noisy=noisy,
    negative=negative,
    failed=failed(positive, negative),
    persons=gradient_identified.identify(by, client, rows, found),
    labels=tuple(int(label) for label in labels),
    originals=originals,
    found=found,
    control=photos(control),
    random=photos(noise[0]),
  )


def _attacked(
  client: ClientData, num: int, batch: int
) -> Int[np.ndarray, ' B']:
  """Returns the first image of each of the first persons with several.

  Args:
    client: client with the images.
    num: largest number of images.
    batch: number of images of a gradient; the result has a multiple of it.
  """
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
  """Returns the controls that failed.

  Args:
    positive: gain of the positive control.
    negative: gain of the negative control.
  """
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
  """Returns the 95 % interval of the mean by Student's t."""
  width = stats.t.ppf(0.5 + detection.LEVEL / 2, len(gains) - 1)
  width *= np.std(gains, ddof=1) / np.sqrt(len(gains))
  return float(np.mean(gains) - width), float(np.mean(gains) + width)


def gain(
  original: Float[Array | np.ndarray, 'H W ch'],
  found: Float[Array | np.ndarray, 'H W ch'],
) -> float:
  """Returns the PSNR of a reconstruction above that of grey, in dB."""
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
