"""Exchanges messages between the coordinator and the sites of a cohort."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec, private
from fedreid_jax.apps.sites.members import Members
from fedreid_jax.apps.sites.terms import Terms
from fedreid_jax.core import types
from fedreid_jax.core.types import Tree


class Setting(NamedTuple):
  """The sites of a run as the coordinator addresses them.

  Attributes:
    members: sends messages to sites.
    terms: of each site, in canonical order: sorted by name.
    run: name of the run at the sites, see `terms.run_name`.
    round_s: seconds that sites have for a round.
    min_sites: number of updates without which a round does not count.
    horizon: number of rounds that a resumed run may repeat.
  """

  members: Members
  terms: Sequence[Terms]
  run: str
  round_s: float
  min_sites: int
  horizon: int


class Exchange:
  """Sends the model and the messages of the server, and collects replies."""

  def __init__(
    self,
    setting: Setting,
    names: Sequence[str],
    messages: Callable[[types.ServerState], dict[str, Tree]],
  ):
    """Prepares exchanges.

    Args:
      setting: of the sites.
      names: of the sites, in canonical order.
      messages: `(ServerState) -> messages` broadcast to every site, by name.
    """
    self._setting, self._names = setting, list(names)
    self._messages = messages
    # `starts` of the last rounds; a resumed run asks for none before the
    # oldest. Until there are `horizon` of them, sites delete nothing.
    self._past: deque[np.ndarray] = deque(maxlen=setting.horizon)

  def __call__(
    self,
    kind: str,
    server: types.ServerState,
    starts: np.ndarray,
    members: np.ndarray,
    round_: int,
    read: Callable[[str, codec.Message], Any],
  ) -> dict[int, Any]:
    """Sends messages and returns the replies, by canonical index of the site.

    Args:
      kind: of the messages.
      server: state of the server.
      starts: number of the private state that each site starts from, `[N]`.
      members: indices of the sites that are asked.
      round_: global round.
      read: `(name, message) -> reply`.
    """
    setting = self._setting
    shared, groups, messages = jax.device_get(
      (server.shared, server.groups, self._messages(server))
    )
    oldest = np.full(len(starts), private.INITIAL)
    if kind == codec.TRAIN:
      self._past.append(starts.copy())
      if len(self._past) == setting.horizon:
        oldest = self._past[0]
    asked = {
      self._names[k]: codec.pack(
        kind,
        {
          'terms': setting.terms[k]._asdict(),
          'run': setting.run,
          'round': round_,
          'start': int(starts[k]),
          'oldest': int(oldest[k]),
        },
        {
          'shared': {n: leaf[groups[k]] for n, leaf in shared.items()},
          'messages': messages,
        },
      )
      for k in members
    }
    found = setting.members.ask(kind, asked, setting.round_s, read)
    return {self._names.index(name): reply for name, reply in found.items()}

  def missing(self, found: int, needed: int, when: str) -> errors.ResourceError:
    """Returns an error for a round in which too few sites answered.

    Args:
      found: number of sites that answered.
      needed: number of sites without which the run cannot go on.
      when: part of the run, for the message.
    """
    return errors.ResourceError(
      f'{found} of {errors.counted(needed, "site")} answered in '
      f'{self._setting.round_s:g} s',
      when,
      'start the others; the same command resumes the run',
    )
