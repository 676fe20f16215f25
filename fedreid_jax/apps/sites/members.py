"""Connects the names of sites with the nodes at which they can be reached."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec, terms
from fedreid_jax.apps.sites.terms import Facts

POLL_S = 1.0  # seconds between two searches for sites
HELLO_S = 120.0  # seconds for a reply to HELLO, which needs no training
# A STRANGER has no arrays: a reply of more bytes is not unpacked for its kind.
NO_ARRAYS = 1000
Reply = TypeVar('Reply')
# A reply FAILED has the exit code of an error, which decides its class here.
CODES = {kind.exit_code: kind for kind in errors.FedReIDError.__subclasses__()}


class Channel(Protocol):
  """A connection to nodes, each of which is a site."""

  def nodes(self) -> Sequence[int]:
    """Returns the numbers of all connected nodes."""
    ...

  def ask(
    self, kind: str, messages: Mapping[int, bytes], timeout: float
  ) -> Mapping[int, bytes]:
    """Sends messages and returns the replies by node; some may be missing.

    Args:
      kind: of the messages, see `codec`.
      messages: by node.
      timeout: in seconds; a later reply is lost.
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
      agreed: fields of `terms.agreed`; sites compare them with theirs.
      say: prints a line.
    """
    self._channel, self._say = channel, say
    self._hello = codec.pack(codec.HELLO, {'agreed': dict(agreed)})
    self._known: dict[int, Facts] = {}
    # The last error of each refused node, so that it is printed only once.
    self._refused: dict[int, str] = {}
    # The sites of the run, once it has begun; empty before.
    self._roster: dict[str, Facts] = {}

  def gather(self, count: int, timeout: float) -> list[Facts]:
    """Waits until a number of sites is connected; later no other one can join.

    Args:
      count: number of sites.
      timeout: in seconds.

    Returns:
      Facts about the sites, sorted by name.

    Raises:
      DataError: when two sites have the same name.
      ConfigError: when more sites are connected, or the configuration of one
        differs.
      ResourceError: when fewer sites are connected after the timeout.
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
    """Sends messages to sites and returns their replies by name.

    A site that does not answer in time, or whose reply is an error or cannot be
    read, is left out and named in a printed line.

    Args:
      kind: of the messages.
      messages: by name of the site.
      timeout: in seconds, for each attempt.
      read: `(name, message) -> reply`; raises an error for a wrong message.
    """
    answered = self._deliver(kind, messages, timeout)
    # A worker that was restarted behind a connected SuperNode keeps its node.
    # It is forgotten, so that it is checked with HELLO, and asked once more.
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
    """Sends messages to the connected sites and returns their replies."""
    self._look()
    nodes = self._present()
    there = {nodes[name]: name for name in messages if name in nodes}
    if not there:
      return {}
    sent = {node: messages[name] for node, name in there.items()}
    replies = self._channel.ask(kind, sent, timeout)
    return {there[n]: data for n, data in replies.items() if n in there}

  def _present(self) -> dict[str, int]:
    """Returns the node of each connected site, by name."""
    return {facts.name: node for node, facts in self._known.items()}

  def _look(self, refuse: bool = False) -> None:
    """Asks new nodes for their facts, and forgets nodes that have left.

    Args:
      refuse: whether to raise the error of a site; otherwise it is printed.
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
    # Without versions: after an update of JAX a site may return, and the
    # version of this package is compared above.
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
  except errors.IntegrityError:  # reported when the reply is read
    return False


def _read(data: bytes, name: str) -> codec.Message:
  """Returns a reply, or raises the error that a reply FAILED contains."""
  message = codec.unpack(data, name)
  if message.kind == codec.FAILED:
    # The site may send anything here: other forms give an InternalError.
    told = message.fields.get('error')
    code, *parts = told if isinstance(told, list) and len(told) == 4 else [0]
    kind = CODES.get(code if isinstance(code, int) else 0, errors.InternalError)
    raise kind(*map(str, parts or ['an error without a reason', name]))
  return message
