"""Times at which clients are available, and durations of their rounds.

A client is available at a time either with a probability that rises and falls
over the day, `clip(mean + swing sin(2 pi (h / 24 + phase)), 0, 1)`, or in the
intervals of a file. A device needs `bytes / bandwidth + steps * step_s / speed`
seconds for a round. Speed and bandwidth have log-normal distributions, like
those of measured devices (Lai et al., FedScale, ICML 2022). A client has the
same phase, speed and bandwidth in the whole run. All functions are pure and run
on the host.
"""

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import prng
from fedreid_jax.core.prng import Stream

DAY_S = 86400.0
COLUMNS = ('client', 'from_s', 'until_s')


class Devices(NamedTuple):
  """The speed and bandwidth of the clients' devices.

  Attributes:
    step_s: seconds of a local step on the median device.
    speed_spread: standard deviation of the logarithm of the speed.
    bandwidth: bytes per second of the median device in both directions, 0 if
      transfers take no time.
    bandwidth_spread: standard deviation of the logarithm of the bandwidth.
  """

  step_s: float
  speed_spread: float
  bandwidth: float
  bandwidth_spread: float

  def seconds(self, seed: int, uid: int, steps: int, sent: int) -> float:
    """Returns the seconds of a client's round.

    Args:
      seed: seed of the run.
      uid: hash of the client's name.
      steps: number of local steps of the client.
      sent: number of bytes in both directions together.
    """
    # Round 0 of the stream: a device has one speed in the whole run.
    rng = prng.host(seed, Stream.DEVICE, 0, uid)
    speed, bandwidth = np.exp(
      rng.standard_normal(2) * (self.speed_spread, self.bandwidth_spread)
    )
    transfer = sent / (self.bandwidth * bandwidth) if self.bandwidth else 0.0
    return float(transfer + steps * self.step_s / speed)


# (number of the draw, seconds since the start of the run) -> bool [N]
Available = Callable[[int, float], np.ndarray]


def daily(
  seed: int, uids: Sequence[int], mean: float, swing: float
) -> Available:
  """Returns an availability that rises and falls over the day.

  Args:
    seed: seed of the run.
    uids: hashes of the names of all clients, `[N]`.
    mean: mean probability.
    swing: largest difference of the probability from its mean.
  """
  phases = np.asarray(
    [prng.host(seed, Stream.DEVICE, 1, uid).random() for uid in uids]
  )

  def available(draw: int, seconds: float) -> np.ndarray:
    rng = prng.host(seed, Stream.AVAILABILITY, draw, 0)
    wave = np.sin(2 * math.pi * (seconds / DAY_S + phases))
    # Random numbers are below 1, so that a probability of 1 is always.
    return rng.random(len(phases)) < np.clip(mean + swing * wave, 0, 1)

  return available


def listed(path: str, names: Sequence[str]) -> Available:
  """Returns the availability in a file.

  Args:
    path: CSV file with the columns `client`, `from_s` and `until_s`, in seconds
      since the start of the run; a client may have several rows, and one
      without a row never takes part. The file repeats after its last
      `until_s`.
    names: names of all clients, `[N]`.

  Raises:
    ConfigError: if the file cannot be read, names no client of the run, or has
      a row that is not an interval.
  """
  where = 'availability.file'
  known = {name: k for k, name in enumerate(names)}
  rows: list[tuple[int, float, float]] = []
  try:
    with Path(path).open(newline='') as file:
      reader = csv.DictReader(file)
      if not {*COLUMNS} <= {*(reader.fieldnames or ())}:
        raise errors.ConfigError(
          f'{path} lacks columns', where, f'needs {", ".join(COLUMNS)}'
        )
      for line, row in enumerate(reader, start=2):
        if None in row.values():
          raise ValueError(f'line {line} has too few columns')
        start, end = float(row['from_s']), float(row['until_s'])
        if not 0 <= start < end:
          raise errors.ConfigError(
            f'{path}, line {line}: {start:g} to {end:g} is no interval',
            where,
            'give from_s below until_s, in seconds',
          )
        if row['client'] in known:
          rows.append((known[row['client']], start, end))
  except (OSError, ValueError, csv.Error) as error:
    raise errors.ConfigError(
      f'{path}: {error}', where, 'give a readable CSV file'
    ) from error
  if not rows:
    raise errors.ConfigError(
      f'{path} names no client of this run', where, f'such as {names[0]!r}'
    )
  client = np.asarray([row[0] for row in rows])
  begin, until = (np.asarray([row[i] for row in rows]) for i in (1, 2))

  def available(draw: int, seconds: float) -> np.ndarray:
    del draw
    # The intervals repeat, for runs that last longer than the file.
    seconds = math.fmod(seconds, until.max())
    now = (begin <= seconds) & (seconds < until)
    return np.bincount(client[now], minlength=len(names)) > 0

  return available
