"""The clients of each round and their times, in simulated time.

With rounds, the server invites clients that are available, `1 + over_selection`
times as many as it needs. It uses the first uploads that it receives before the
deadline (Bonawitz et al., MLSys 2019). Without rounds (`in_flight`), a client
starts when the upload of another one is received, and the server updates its
model after every `size` uploads (FedBuff; Nguyen et al., AISTATS 2022). The
staleness of an upload is the number of updates since its client started.

Times do not depend on trained values. A timetable is a function of the seed, so
that a resumed run has the same timetable.

A client is available at a time either with a probability that rises and falls
over the day, `clip(mean + swing sin(2 pi (h / 24 + phase)), 0, 1)`, or in the
intervals of a file. A device needs `bytes / bandwidth + steps * step_s / speed`
seconds for a round. Speed and bandwidth have log-normal distributions, like
those of measured devices (Lai et al., FedScale, ICML 2022). A client has the
same phase, speed and bandwidth in the whole run. All functions are pure and run
on the host.
"""

import csv
import dataclasses
import heapq
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import prng
from fedreid_jax.core.options import Natural, NonNegative, Range, Share
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.secret import Secret

WAIT_S = 60.0  # seconds until the server asks again if no client is available
MOST_WAITS = 100_000  # times that the server asks, for more than two months
DAY_S = 86400.0


COLUMNS = ('client', 'from_s', 'until_s')


@dataclasses.dataclass(frozen=True)
class Availability:
  """Simulated time: who can take part, and how long it takes."""

  mean: Annotated[
    float, Range(1e-3, 1), 'mean probability that a client can take part'
  ] = 1.0
  swing: Annotated[
    Share, 'how far this probability rises and falls over the day of a client'
  ] = 0.0
  file: Annotated[
    str,
    'CSV file of client, from_s and until_s in seconds, instead of a '
    'probability',
  ] = ''
  step_s: Annotated[
    NonNegative, 'seconds of a local step on the median device'
  ] = 0.0
  speed_spread: Annotated[
    float, Range(0, 5), 'standard deviation of the logarithm of the speed'
  ] = 0.0
  bandwidth: Annotated[
    NonNegative,
    'bytes a second of the median device; 0 means that transfers take no time',
  ] = 0.0
  bandwidth_spread: Annotated[
    float, Range(0, 5), 'standard deviation of the logarithm of the bandwidth'
  ] = 0.0
  deadline_s: Annotated[
    NonNegative, 'seconds after which a round ends; 0 means no deadline'
  ] = 0.0
  over_selection: Annotated[
    float,
    Range(0, 10),
    'additional clients of a round, as a fraction; the first to arrive are '
    'used',
  ] = 0.0
  in_flight: Annotated[
    Natural, 'fedbuff: clients that train at a time, without rounds'
  ] = 0


class Round(NamedTuple):
  """The clients of a round.

  Attributes:
    clients: clients whose uploads the server uses, int32 `[K]`, in the order of
      sampling, or without rounds in the order of arrival.
    staleness: updates of the server since each client started, int32 `[K]`.
    late: clients whose uploads are not used, int32: after the deadline, after
      enough others, or too stale.
    start: start of the round, in seconds since the start of the run.
    end: time at which the server updates its model, likewise.
  """

  clients: np.ndarray
  staleness: np.ndarray
  late: np.ndarray
  start: float
  end: float


class Rules(NamedTuple):
  """The rules by which the server chooses clients.

  Attributes:
    size: number of uploads of an update, `K`.
    over_selection: additional clients that are invited, as a fraction of `K`.
    deadline_s: longest time of a round in seconds, 0 for none.
    in_flight: number of clients that train at a time, 0 for rounds.
    max_staleness: largest staleness of an upload that is used.
  """

  size: int
  over_selection: float = 0.0
  deadline_s: float = 0.0
  in_flight: int = 0
  max_staleness: int = 0


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

  Raises:
    ConfigError: if the file cannot be read, names no client of the run, or has
      a row that is not an interval.
  """
  where = 'availability.file'
  known = {name: k for k, name in enumerate(names)}
  period = 0.0
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
        # Of all rows: other clients of a trace do not change its period.
        period = max(period, end)
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
    seconds = math.fmod(seconds, period)
    now = (begin <= seconds) & (seconds < until)
    return np.bincount(client[now], minlength=len(names)) > 0

  return available


class Timetable:
  """The rounds of a run, which are computed in order and kept."""

  def __init__(
    self,
    rules: Rules,
    seed: int | Secret,
    uids: Sequence[int],
    available: Available,
    seconds: Callable[[int], float],
  ):
    """Prepares the computation; no round is computed yet.

    Args:
      seconds: `(client) -> seconds` of the client's round.
    """
    self._rules, self._seed, self._uids = rules, seed, uids
    self._available, self._seconds = available, seconds
    self._rounds: list[Round] = []
    # Without rounds: the time, and the numbers of draws and of updates.
    self._now, self._draws, self._version = 0.0, 0, 0
    # (arrival, uid, client, version of the model that the client started from)
    self._training: list[tuple[float, int, int, int]] = []

  def round(self, number: int) -> Round:
    """Returns a round; all rounds before it are computed first.

    Raises:
      ConfigError: if no client is available for months; a second call begins
        at the same place.
    """
    while len(self._rounds) <= number:
      before = self._now, self._draws, self._version, [*self._training]
      try:
        made = self._update() if self._rules.in_flight else self._next()
      except BaseException:
        # A round that was read ahead is computed again.
        self._now, self._draws, self._version, self._training = before
        raise
      self._rounds.append(made)
    return self._rounds[number]

  def _next(self) -> Round:
    number, rules = len(self._rounds), self._rules
    start = self._rounds[-1].end if number else 0.0
    able = self._available(number, start)
    rng = prng.host(self._seed, prng.Stream.COHORT, number, 0)
    order = rng.permutation(len(self._uids))
    # Rounding errors of the product must not invite one more client.
    wanted = math.ceil((1 + rules.over_selection) * rules.size - 1e-9)
    invited = order[able[order]][:wanted]
    times = np.asarray([self._seconds(int(k)) for k in invited])
    limit = rules.deadline_s or math.inf
    uids = [self._uids[int(k)] for k in invited]
    # Equal times are ordered by the hash of the name, not by the place.
    ranked = [int(i) for i in np.lexsort((np.asarray(uids), times))]
    used = [i for i in ranked if times[i] <= limit][: rules.size]
    if len(used) == rules.size:
      lasted = times[used[-1]]
    elif rules.deadline_s:
      lasted = rules.deadline_s
    else:
      lasted = max(times, default=WAIT_S)
    chosen = np.isin(np.arange(len(invited)), used)
    clients = invited[chosen].astype(np.int32)
    return Round(
      clients,
      np.zeros(len(clients), np.int32),
      invited[~chosen].astype(np.int32),
      start,
      start + float(lasted),
    )

  def _update(self) -> Round:
    """Returns the clients of an update without rounds."""
    rules, start, waits = self._rules, self._now, 0
    clients: list[int] = []
    staleness: list[int] = []
    late: list[int] = []
    while len(clients) < rules.size:
      self._fill({*clients})
      if not self._training:
        self._now, waits = self._now + WAIT_S, waits + 1
        if waits > MOST_WAITS:
          raise errors.ConfigError(
            f'no client is available after {self._now / 86400:.0f} days',
            'availability',
            'raise availability.mean, or give longer intervals',
          )
        continue
      self._now, _, client, version = heapq.heappop(self._training)
      age = self._version - version
      if age > rules.max_staleness:
        late.append(client)
      else:
        clients.append(client)
        staleness.append(age)
    self._version += 1
    return Round(
      np.asarray(clients, np.int32),
      np.asarray(staleness, np.int32),
      np.asarray(late, np.int32),
      start,
      self._now,
    )

  def _fill(self, buffered: set[int]) -> None:
    """Starts clients until enough of them train.

    A client trains at most once at a time, and not while its upload is in the
    buffer.
    """
    free = self._rules.in_flight - len(self._training)
    if free <= 0:
      return
    able = self._available(self._draws, self._now)
    rng = prng.host(self._seed, prng.Stream.COHORT, self._draws, 0)
    self._draws += 1
    # A client keeps one state, which a second round would start from too early.
    busy = buffered | {client for _, _, client, _ in self._training}
    order = rng.permutation(len(self._uids))
    for client in [int(k) for k in order if able[k] and k not in busy][:free]:
      done = self._now + self._seconds(client)
      entry = done, self._uids[client], client, self._version
      heapq.heappush(self._training, entry)
