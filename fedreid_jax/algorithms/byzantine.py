"""Byzantine clients: some clients send wrong parameters on purpose.

With D_k = w_k - w^t of the trainable parameters, an attacker trains like all
other clients and sends

  sign      w^t - g D_k, g = 1
  scale     w^t + g D_k, g = sum_j n_j / sum_{attackers} n_j, by which the mean
            becomes the attackers' model (model replacement)
  gaussian  w^t + N(0, (g rms(D_k))^2), g = 10
  zero      w^t
  alie      mu - z sigma, the mean and the deviation of every coordinate over
            the attackers' uploads, z = Phi^-1((K - M - h) / (K - M)),
            h = floor(K / 2 + 1) - M, for M attackers of K uploads; the same
            vector from each of them

Blanchard et al., NeurIPS 2017 (gaussian); Bagdasaryan et al., How to backdoor
federated learning, AISTATS 2020 (scale); Baruch et al., A little is enough:
circumventing defenses for distributed learning, NeurIPS 2019 (alie). The
component is for measurements of aggregation rules (`robust`). Running
statistics and the messages of components come from honest training. Compose
it last, since it changes the upload after other components.

Deviations from the papers: they attack gradients, and this module the models
after local training. z is between the quantiles 0.001 and 0.999 where a cohort
has few honest clients. Deviations from released code: that of Baruch et al.
takes a fixed z of 1.5.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.algorithms import robust
from fedreid_jax.core import prng, trees
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Broadcast, ClientData, Flat, Upload
from fedreid_jax.method import aggregation
from fedreid_jax.method.component import (
  Component,
  Participants,
  Property,
  Transport,
)
from fedreid_jax.method.rules import Given, Rule

GAUSSIAN = 10.0  # noise of `gaussian` over the root mean square of the update
PROPERTIES: tuple[Property, ...] = ('attacker', 'simulated')
# Bounds of the quantile of `alie`, which reaches 0 or 1 in a cohort of few
# honest clients, where z would be infinite.
QUANTILES = 1e-3, 1 - 1e-3


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of Byzantine clients."""

  kind: Annotated[
    Literal['sign', 'scale', 'gaussian', 'zero', 'alie'],
    'what an attacker sends instead of its model',
  ] = 'sign'
  clients: Annotated[tuple[str, ...], 'names of the attackers'] = ()
  share: Annotated[
    float,
    Range(0, 0.4999),
    'share of all clients that attack, chosen by the hash of their names',
  ] = 0.0
  scale: Annotated[
    float,
    Range(0),
    'factor of the attack (alie: deviations from the mean), 0 for that of its '
    'paper',
  ] = 0.0


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  options = given.options
  yield (
    not options.clients and not options.share,
    f'{given.name}.clients',
    'no client attacks',
    f'name some, or set {given.name}.share, or remove {given.name!r}',
  )


def make(options: Options = Options()) -> Component:
  """Builds the component; without participants it attacks nothing."""

  def bind(participants: Participants) -> Component:
    names = [client.name for client in participants.clients]
    chosen = attackers(options, names)
    return _component(options, chosen, participants.clients)

  return Component(
    'byzantine',
    transport=Transport(up=_unchanged),
    properties=PROPERTIES,
    bind=bind,
  )


def attackers(options: Options, names: Sequence[str]) -> list[str]:
  """The names of the attackers.

  Raises:
    ConfigError: for an unknown name, or a share of less than one client.
  """
  for name in options.clients:
    if name not in names:
      raise errors.ConfigError(
        f'no client {name!r}', 'byzantine.clients', errors.one_of(name, names)
      )
  # Without the margin, the rounding of a product such as 0.29 * 100 =
  # 28.999999999999996 would lose one attacker.
  number = math.floor(options.share * len(names) + 1e-9)
  if options.share and not number and not options.clients:
    raise errors.ConfigError(
      f'{options.share:g} of {len(names)} clients is less than one',
      'byzantine.share',
      f'set it to at least {1 / len(names):.3g}',
    )
  hashed = sorted(names, key=prng.client_uid)[:number]
  return sorted({*options.clients, *hashed})


def _component(
  options: Options, chosen: list[str], clients: Sequence[ClientData]
) -> Component:
  """The component that attacks from the chosen clients."""
  wrong = np.array([client.name in chosen for client in clients])
  sizes = np.array([client.num_images for client in clients], np.float32)
  factors = {
    'scale': float(sizes.sum() / max(sizes[wrong].sum(), 1.0)),
    'gaussian': GAUSSIAN,
  }
  factor = options.scale or factors.get(options.kind, 1.0)

  def up(
    state: Any, upload: Upload, received: Broadcast, key: Array
  ) -> tuple[Any, Upload]:
    is_wrong = _among(wrong, upload.index)
    # Trainable parameters only: a negative variance would betray the attacker.
    start, _ = trees.trainable(received.shared)
    sent = attack(options.kind, factor, upload.shared, start, key)
    sent = trees.select(is_wrong, sent, _of(upload, sent))
    return state, _with(upload, sent)

  def collude(uploads: Upload) -> Upload:
    return _collude(options.scale, _among(wrong, uploads.index), uploads)

  together = options.kind == 'alie'
  text = f'clients attack with {options.kind}: {", ".join(chosen)}'
  return Component(
    'byzantine',
    transport=Transport(collude=collude) if together else Transport(up=up),
    properties=PROPERTIES,
    notice=text if chosen else '',
  )


def attack(
  kind: str, factor: float, shared: Flat, start: Flat, key: Array
) -> Flat:
  """The trainable parameters that an attacker sends; `factor` is g."""
  changes = {n: shared[n] - x for n, x in start.items()}
  if kind == 'gaussian':
    total = sum((x**2).sum() for x in changes.values())
    count = sum(x.size for x in changes.values())
    deviation = factor * jnp.sqrt(total / count)
    changes = {
      name: deviation
      * jax.random.normal(jax.random.fold_in(key, place), changes[name].shape)
      for place, name in enumerate(sorted(changes))
    }
  else:
    by = {'sign': -factor, 'scale': factor, 'zero': 0.0}[kind]
    changes = {n: by * x for n, x in changes.items()}
  return {n: x + changes[n] for n, x in start.items()}


def largest_deviation(num_uploads: Array, num_wrong: Array) -> Array:
  """Returns z of `alie`."""
  honest = jnp.maximum(num_uploads - num_wrong, 1)
  needed = num_uploads // 2 + 1 - num_wrong
  share = jnp.clip((honest - needed) / honest, *QUANTILES)
  return jax.scipy.stats.norm.ppf(share)


def _collude(scale: float, wrong: Array, uploads: Upload) -> Upload:
  """Replaces the uploads of all attackers by the vector of `alie`."""
  valid = aggregation.valid_uploads(uploads)
  wrong &= valid
  own, _ = trees.trainable(uploads.shared)
  # Honest rows do not enter the mean, and lost ones may not be finite.
  own = robust.present(own, wrong)
  count = jnp.maximum(wrong.sum(), 1)
  z = scale or largest_deviation(valid.sum(), wrong.sum())

  def one(values: Array) -> Array:
    mean = values.sum(axis=0) / count
    apart = jnp.where(robust.wide(wrong, values), values - mean[None], 0.0)
    return mean - z * jnp.sqrt((apart**2).sum(axis=0) / count)

  def placed(name: str, sent: Array) -> Array:
    values = uploads.shared[name]
    return jnp.where(robust.wide(wrong, values), sent[None], values)

  return _with(uploads, {n: placed(n, one(x)) for n, x in own.items()})


def _among(wrong: np.ndarray, index: Array) -> Array:
  """Returns whether clients of canonical indices are attackers."""
  return jnp.asarray(wrong)[jnp.maximum(index, 0)] & (index >= 0)


def _with(upload: Upload, changed: Flat) -> Upload:
  return dataclasses.replace(upload, shared={**upload.shared, **changed})


def _of(upload: Upload, names: Flat) -> Flat:
  return {name: upload.shared[name] for name in names}


def _unchanged(
  state: Any, upload: Upload, received: Broadcast, key: Array
) -> tuple[Any, Upload]:
  del received, key
  return state, upload
