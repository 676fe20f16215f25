"""The clients of each round and their times, in simulated time.

With rounds, the server invites clients that are available, `1 + over_selection`
times as many as it needs. It uses the first uploads that it receives before the
deadline (Bonawitz et al., MLSys 2019). Without rounds (`in_flight`), a client
starts when the upload of another one is received, and the server updates its
model after every `size` uploads (FedBuff; Nguyen et al., AISTATS 2022). The
staleness of an upload is the number of updates since its client started.

Times do not depend on trained values. A timetable is a function of the seed, so
that a resumed run has the same timetable.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import prng
from fedreid_jax.core.secret import Secret
from fedreid_jax.round.cohort.availability import Available

WAIT_S = 60.0  # seconds until the server asks again if no client is available
MOST_WAITS = 100_000  # times that the server asks, for more than two months


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
      rules: rules by which the server chooses clients.
      seed: seed or secret of the run.
      uids: hashes of the names of all clients, `[N]`.
      available: availability of the clients.
      seconds: `(client) -> seconds` of the client's round.
    """
    self._rules, self._seed, self._uids = rules, seed, uids
    self._available, self._seconds = available, seconds
    self._rounds: list[Round] = []
    self._asynchronous = (
      _InFlight(rules, seed, uids, available, seconds)
      if rules.in_flight
      else None
    )

  def round(self, number: int) -> Round:
    """Returns a round; all rounds before it are computed first."""
    while len(self._rounds) <= number:
      if self._asynchronous is not None:
        self._rounds.append(self._asynchronous.update())
      else:
        self._rounds.append(self._next())
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


class _InFlight:
  """Clients that train at the same time but start at different times."""

  def __init__(
    self,
    rules: Rules,
    seed: int | Secret,
    uids: Sequence[int],
    available: Available,
    seconds: Callable[[int], float],
  ):
    self._rules, self._seed, self._uids = rules, seed, uids
    self._available, self._seconds = available, seconds
    self._now, self._draws, self._version = 0.0, 0, 0
    # (arrival, uid, client, version of the model that the client started from)
    self._training: list[tuple[float, int, int, int]] = []

  def update(self) -> Round:
    """Returns the clients of the next update of the server's model.

    Raises:
      ConfigError: if no client is available for months.
    """
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
