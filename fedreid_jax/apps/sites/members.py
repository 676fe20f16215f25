"""The sites that a coordinator can reach, by their names."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec, terms
from fedreid_jax.apps.sites.terms import Facts

POLL_S = 1.0  # between two looks for sites
HELLO_S = 120.0  # for an answer to the first message, which needs no training
NO_ARRAYS = 1000  # bytes; a longer reply is not unpacked to learn its kind
Reply = TypeVar('Reply')
CODES = {kind.exit_code: kind for kind in errors.FedReIDError.__subclasses__()}


class Channel(Protocol):
  """A connection to nodes, each of which is a site."""

  def nodes(self) -> Sequence[int]:
    """Returns the numbers of the nodes that are connected."""
    ...

  def ask(
    self, kind: str, messages: Mapping[int, bytes], timeout: float
  ) -> Mapping[int, bytes]:
    """Returns the replies that came within a time, by node.

    Args:
      kind: of the messages, see `codec`.
      messages: by node.
      timeout: in seconds.
    """
    ...


class Members:
  """Finds the nodes of sites, and sends messages to sites by their names."""

  def __init__(
    self,
    channel: Channel,
    agreed: Mapping[str, Any],
    say: Callable[[str], None],
  ):
    """Prepares the search.

    Args:
      channel: to the nodes.
      agreed: of `terms.agreed`, which sites compare with their own.
      say: prints a line.
    """
    self._channel, self._say = channel, say
    self._hello = codec.pack(codec.HELLO, {'agreed': dict(agreed)})
    self._known: dict[int, Facts] = {}
    self._refused: dict[int, str] = {}  # and why, so that it is said once
    self._roster: dict[str, Facts] = {}

  def gather(self, count: int, timeout: float) -> list[Facts]:
    """Waits for a number of sites; no other site can join later.

    Args:
      count: number of sites.
      timeout: in seconds.

    Returns:
      Facts about the sites, sorted by name.

    Raises:
      DataError: when two sites have one name.
      ConfigError: when there are more sites, or one has another configuration.
      ResourceError: when there are fewer after the timeout.
    """
    end = time.monotonic() + timeout
    while True:
      self._look(refuse=True)
      found = [*self._known.values()]
      names = sorted(facts.name for facts in found)
      for name, after in zip(names, names[1:], strict=False):
        if name == after:
          raise errors.DataError(
            'two sites have this name',
            f'site {name}',
            'give one another --name',
          )
      if len(found) > count:
        raise errors.ConfigError(
          f'{errors.counted(len(found), "site")}: {", ".join(names)}',
          '--sites',
          'end the others',
        )
      if len(found) == count:
        self._roster = {facts.name: facts for facts in found}
        return sorted(found)
      if time.monotonic() > end:
        raise errors.ResourceError(
          f'{len(found)} of {errors.counted(count, "site")} within '
          f'{timeout:g} s: ' + (', '.join(names) or 'none'),
          'sites',
          'start the others; the same command begins or resumes the run',
        )
      time.sleep(POLL_S)

  def ask(
    self,
    kind: str,
    messages: Mapping[str, bytes],
    timeout: float,
    read: Callable[[str, codec.Message], Reply],
  ) -> dict[str, Reply]:
    """Returns the replies of sites that came within a time, by name.

    A site that does not answer, or whose answer is an error or cannot be read,
    is left out and named in a line. A site that has started again at the same
    node is checked like one that comes back, and asked once more.

    Args:
      kind: of the messages.
      messages: by name of the site.
      timeout: in seconds.
      read: `(name, message) -> reply`; raises an error for a wrong message.
    """
    answered = self._deliver(kind, messages, timeout)
    again = [name for name, data in answered.items() if _is_stranger(data)]
    if again:
      nodes = self._present()
      for name in again:
        del answered[name], self._known[nodes[name]]
      only = {name: messages[name] for name in again}
      answered |= self._deliver(kind, only, timeout)
    found: dict[str, Reply] = {}
    for name in sorted(messages):
      if name not in answered:
        self._say(f'site {name} did not answer')
        continue
      try:
        message = _read(answered[name], f'site {name}')
        found[name] = read(name, message)
      except errors.FedReIDError as error:
        self._say(f'site {name} is left out: {error.line()}')
    return found

  def _deliver(
    self, kind: str, messages: Mapping[str, bytes], timeout: float
  ) -> dict[str, bytes]:
    """Returns the replies of the sites that are connected, by name."""
    self._look()
    nodes = self._present()
    there = {nodes[name]: name for name in messages if name in nodes}
    if not there:
      return {}
    sent = {node: messages[name] for node, name in there.items()}
    replies = self._channel.ask(kind, sent, timeout)
    return {there[n]: data for n, data in replies.items() if n in there}

  def _present(self) -> dict[str, int]:
    """Returns the nodes of the sites that are connected, by name."""
    return {facts.name: node for node, facts in self._known.items()}

  def _look(self, refuse: bool = False) -> None:
    """Learns the names of nodes that have come, and forgets those that left.

    Args:
      refuse: whether an error of a site is raised; otherwise it is a line.
    """
    here = self._channel.nodes()
    self._known = {n: facts for n, facts in self._known.items() if n in here}
    new = [node for node in here if node not in self._known]
    if not new:
      return
    replies = self._channel.ask(
      codec.HELLO, dict.fromkeys(new, self._hello), HELLO_S
    )
    for node, data in replies.items():
      try:
        where = f'node {node}'
        facts = terms.read_facts(_read(data, where).fields, where)
        self._check(facts)
        self._known[node] = facts
      except errors.FedReIDError as error:
        if refuse:
          raise
        if self._refused.get(node) != error.line():
          self._say(f'a site was refused: {error.line()}')
        self._refused[node] = error.line()

  def _check(self, facts: Facts) -> None:
    """Raises an error for a site that cannot take part."""
    terms.check_versions(facts)
    if not self._roster:
      return
    if facts.name not in self._roster:
      raise errors.DataError(
        'it was not there when the run began',
        f'site {facts.name}',
        'start the run again with --restart to add it',
      )
    if facts.name in self._present():
      raise errors.DataError(
        'two sites have this name',
        f'site {facts.name}',
        'end one of them',
      )
    before = self._roster[facts.name]
    if facts._replace(versions={}) != before._replace(versions={}):
      raise errors.DataError(
        'its images changed since the run began',
        f'site {facts.name}',
        'restore them, or start the run again with --restart',
      )


def _is_stranger(data: bytes) -> bool:
  if len(data) > NO_ARRAYS:
    return False
  try:
    return codec.unpack(data, '').kind == codec.STRANGER
  except errors.IntegrityError:  # who reads the reply says so
    return False


def _read(data: bytes, name: str) -> codec.Message:
  """Returns a reply, and raises the error in a reply of failure."""
  message = codec.unpack(data, name)
  if message.kind == codec.FAILED:
    told = message.fields.get('error')
    code, *parts = told if isinstance(told, list) and len(told) == 4 else [0]
    kind = CODES.get(code if isinstance(code, int) else 0, errors.InternalError)
    raise kind(*map(str, parts or ['an error without a reason', name]))
  return message
