"""The sites of a run: their facts, their terms, and messages by their names.

Before a run each site reports facts about its images, and the coordinator
returns the terms of the run. A site may leave and return as another node.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any, NamedTuple, Protocol, TypeVar, get_args

import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec, told
from fedreid_jax.config import load, parsing
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import plugins
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import client_split
from fedreid_jax.models.options import DType
from fedreid_jax.round import cohort
from fedreid_jax.version import __version__

# All other fields must be equal at the coordinator and at all sites. These are
# about the place of images, tests, machines and the work of the coordinator.
OWN_GROUPS = 'data', 'evaluation', 'execution'
OWN_FIELDS = 'name', 'fraction', 'checkpoint_every', 'start_from'
# Fields of the groups above that change the computation at a site.
EQUAL = (
  *(f'data.{name}' for name in ('height', 'width', 'channels', 'mean', 'std')),
  *(f'data.{name}' for name in ('task', 'labels', 'invert', 'resample')),
  *('execution.deterministic', 'execution.width'),
)
DTYPE = 'model.dtype'
# Fields with the path of a file at a site, which stays there.
FILES = ('model.pretrained',)
POLL_S = 1.0  # seconds between two searches for sites
HELLO_S = 120.0  # seconds for a reply to HELLO, which needs no training
# Seconds for nodes that did not answer HELLO before. A worker that was reading
# images then answers at once, and a node without one delays no round by more.
AGAIN_S = 5.0
# A STRANGER has no arrays: a reply of more bytes is not unpacked for its kind.
NO_ARRAYS = 1000
Reply = TypeVar('Reply')
# A reply FAILED has the exit code of an error, which decides its class here.
CODES = {kind.exit_code: kind for kind in errors.FedReIDError.__subclasses__()}
MOST = 10**7  # largest count of a site; `placeholder` has as many labels


class Facts(NamedTuple):
  """Numbers and versions that a site reports to the coordinator."""

  name: str  # of the site; its hash determines the random keys of the site
  images: int  # number of its training images
  identities: int  # number of its identities
  steps: int  # number of local steps of its longest round
  padded: bool  # whether any of its batches can have padded rows
  versions: dict[str, str]  # of fedreid_jax and JAX, by name

  def placeholder(self) -> ClientData:
    """A client with as many images and identities, but no pixels."""
    labels = np.arange(self.images, dtype=np.int32) % self.identities
    column = np.zeros(self.images, np.int32)
    return ClientData(
      self.name, self._absent, labels, column, column, self.identities
    )

  def _absent(self) -> np.ndarray:
    raise errors.InternalError(
      'its images are not here', f'site {self.name}', errors.REPORT
    )


def read_facts(fields: Mapping[str, Any], where: str) -> Facts:
  """Reads the facts in an answer from `where`, or raises IntegrityError."""
  try:
    found = Facts(**fields)
    counts = found.images, found.identities, found.steps
    valid = _is_name(found.name)
    valid &= all(map(_counts, counts))
    valid &= isinstance(found.padded, bool)
    valid = (
      valid
      and isinstance(found.versions, dict)
      and all(map(_is_name, found.versions.values()))
    )
  except TypeError:
    valid = False
  if not valid:
    raise errors.IntegrityError(
      'an answer that cannot be read', where, 'install the same version'
    )
  return Facts(**fields)


def _is_name(text: Any) -> bool:
  """Whether it is a text that can be printed, in files as well."""
  return isinstance(text, str) and 0 < len(text) < 200 and text.isprintable()


class Terms(NamedTuple):
  """Facts about the whole run that a site needs; they never change."""

  number: int  # canonical index of the site
  sites: int  # number of sites, `N`
  cohort: int  # number of sites of a round, `K`
  columns: int  # number of columns of the classifier, `C`
  first_label: int  # number that is added to the site's labels
  identities: int  # number of columns of the classifier that belong to the site
  steps: int  # number of local steps of the longest round of any site
  masked: bool  # whether any batch of any site can have padded rows


def read_terms(fields: Any, facts: Facts, where: str) -> Terms:
  """Reads the terms that a site is sent, or raises IntegrityError.

  They must be possible for a run with the site's facts: nothing is computed
  with others, such as a number of steps for which memory is not there.
  """
  try:
    found = Terms(**fields)
    wrong = [
      name
      for name, fits in (
        ('sites', _counts(found.sites)),
        ('number', _counts(found.number, 0) and found.number < found.sites),
        ('cohort', _counts(found.cohort) and found.cohort <= found.sites),
        (
          'identities',
          _counts(found.identities) and found.identities >= facts.identities,
        ),
        ('first_label', _counts(found.first_label, 0)),
        (
          'columns',
          _counts(found.columns)
          and found.columns >= found.first_label + facts.identities
          and found.columns >= found.identities,
        ),
        ('steps', _counts(found.steps) and found.steps >= facts.steps),
        ('masked', found.masked is True or found.masked is facts.padded),
      )
      if not fits
    ]
  except TypeError:
    wrong = ['names of fields']
  if wrong:
    raise errors.IntegrityError(
      f'terms with another {" and ".join(wrong)} than a run with this site has',
      where,
      'install the same version at the server',
    )
  return Terms(**fields)


def _counts(value: Any, least: int = 1) -> bool:
  """Whether a value of JSON is a count."""
  # `type`, because JSON's `true` would be an int for `isinstance`.
  return type(value) is int and least <= value <= MOST


def versions() -> dict[str, str]:
  """The versions that a site and the coordinator compare."""
  jax = metadata.version('jax')
  return {'fedreid_jax': __version__, 'jax': jax}


def agreed(config: Config) -> dict[str, Any]:
  """The fields that a site and the coordinator must agree on."""
  # The groups of evaluators are part of `evaluation`.
  own_groups = {
    *OWN_GROUPS,
    *(plugins.group_of(n) for n in config.evaluation.extra),
  }

  def shared(name: str) -> bool:
    own = name.partition('.')[0] in own_groups or name in OWN_FIELDS
    return name in EQUAL or not own

  fields = parsing.flatten(load.to_json(config))
  return {name: value for name, value in fields.items() if shared(name)}


def run_name(config: Config, sites: Sequence[Facts]) -> str:
  """The name of a run at its sites: 16 hexadecimal digits."""
  # Without `rounds`: a run that is continued with more rounds has the same
  # states. Without versions, which may change while a run is interrupted.
  known = [site._replace(versions={}) for site in sites]
  fields = {n: x for n, x in agreed(config).items() if n != 'rounds'}
  text = json.dumps([fields, known], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def settled(config: Config, there: Mapping[str, Any]) -> Config:
  """The configuration with the server's type of computation for `auto`."""
  # A run has one type, and the platforms of server and sites may differ.
  dtype = there.get(DTYPE)
  if config.model.dtype != 'auto' or dtype not in get_args(DType):
    return config
  return replace(config, model=replace(config.model, dtype=dtype))


def check_agreed(here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
  """Raises ConfigError, naming fields that differ at a site and the server."""
  differ = [
    f'{name}: another file than at the server'
    if name in FILES
    else f'{name}: {here.get(name)!r} here, {there.get(name)!r} at the server'
    for name in sorted(here.keys() | there.keys())
    if here.get(name) != there.get(name)
  ]
  if differ:
    raise errors.ConfigError(
      'another configuration: ' + '; '.join(differ[:5]),
      told.SITE,
      'use the recipe of the server, and change only the place of the images',
    )


def make(config: Config, sites: Sequence[Facts]) -> list[Terms]:
  """The terms of each site, in the order of the facts."""
  sizes = [site.identities for site in sites]
  spaces = client_split.label_spaces(sizes, config.data.labels)
  return [
    Terms(
      number=k,
      sites=len(sites),
      cohort=cohort.size(len(sites), config.fraction),
      columns=max(columns for _, columns in spaces),
      first_label=first,
      identities=columns,
      steps=max(site.steps for site in sites),
      masked=any(site.padded for site in sites),
    )
    for k, (first, columns) in enumerate(spaces)
  ]


class Channel(Protocol):
  """A connection to nodes, each of which is a site."""

  def nodes(self) -> Mapping[int, str]:
    """The numbers of all connected nodes, each with a text of its key."""
    ...

  def ask(
    self, kind: str, messages: Iterable[tuple[int, bytes]], timeout: float
  ) -> Iterable[tuple[int, bytes]]:
    """Sends (node, message) and yields (node, reply) as replies come.

    A message is made when it is sent. Replies after `timeout` seconds are lost.
    """
    ...


class Members:
  """Finds the nodes of sites, and sends messages to sites by their names."""

  def __init__(
    self,
    channel: Channel,
    agreed: Mapping[str, Any],
    say: Callable[[str], None],
    owners: Mapping[str, str] | None = None,
  ):
    """Prepares the search for sites that agree with the fields of `agreed`.

    `owners` are the keys of the sites of an earlier start of the run, by name.
    """
    self._channel, self._say = channel, say
    self._owners = dict(owners or {})
    self._hello = codec.pack(codec.HELLO, {'agreed': dict(agreed)})
    self._known: dict[int, Facts] = {}
    self._keys: Mapping[int, str] = {}  # of the nodes of the last search
    self._silent: set[int] = set()  # nodes that did not answer HELLO
    # The last error of each refused node, so that it is printed only once.
    self._refused: dict[int, str] = {}
    # The sites of the run, once it has begun; empty before.
    self._roster: dict[str, Facts] = {}

  def gather(self, count: int, timeout: float) -> list[Facts]:
    """Waits for `count` sites, sorted by name; later no other one can join.

    Raises:
      DataError: when two sites have the same name.
      ConfigError: for more sites, or a site with another configuration.
      ResourceError: when fewer sites are connected after the timeout.
    """
    end = time.monotonic() + timeout
    while True:
      self._look(max(end - time.monotonic(), POLL_S), refuse=True)
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
        for node, facts in self._known.items():
          self._owners.setdefault(facts.name, self._keys[node])
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
    names: Sequence[str],
    message: Callable[[str], bytes],
    timeout: float,
    read: Callable[[str, codec.Message], Reply],
    largest: int,
  ) -> Iterator[tuple[str, Reply]]:
    """Sends messages to sites and yields (name, reply) as replies come.

    A site that does not answer within `timeout` seconds, for each attempt, or
    whose reply is an error or cannot be read, is left out and named in a
    printed line.

    Args:
      names: sites that are asked.
      message: returns the message to a site when it is sent.
      read: returns a reply, or raises an error for a wrong one.
      largest: bytes above which a reply is not unpacked.
    """
    silent, again = set(names), list[str]()
    for name, data in self._deliver(kind, names, message, timeout):
      if _is_stranger(data):
        again.append(name)
      elif name in silent:
        silent.remove(name)
        yield from self._reply(name, kind, data, read, largest)
    # A worker that was restarted behind a connected SuperNode keeps its node.
    # It is forgotten, so that it is checked with HELLO, and asked once more.
    nodes = self._present() if again else {}
    for name in again:
      self._known.pop(nodes[name], None)
    if again:
      for name, data in self._deliver(kind, again, message, timeout):
        if name in silent:
          silent.remove(name)
          yield from self._reply(name, kind, data, read, largest)
    for name in sorted(silent):
      self._say(f'site {name} did not answer')

  def _reply(
    self,
    name: str,
    kind: str,
    data: bytes,
    read: Callable[[str, codec.Message], Reply],
    largest: int,
  ) -> Iterator[tuple[str, Reply]]:
    """Yields (name, reply), or nothing if it is wrong."""
    try:
      found = read(name, _read(data, f'site {name}', kind, largest))
    except errors.FedReIDError as error:
      self.leave_out(name, error.line())
    else:
      yield name, found

  def leave_out(self, name: str, why: str) -> None:
    """Prints that a site does not take part in a round."""
    self._say(f'site {name} is left out: {why}')

  def _deliver(
    self,
    kind: str,
    names: Sequence[str],
    message: Callable[[str], bytes],
    timeout: float,
  ) -> Iterator[tuple[str, bytes]]:
    self._look(HELLO_S)
    nodes = self._present()
    there = {nodes[name]: name for name in names if name in nodes}
    if not there:
      return
    sent = ((node, message(name)) for node, name in there.items())
    for node, data in self._channel.ask(kind, sent, timeout):
      if node in there:
        yield there[node], data

  def _present(self) -> dict[str, int]:
    """The node of each connected site, by name."""
    return {facts.name: node for node, facts in self._known.items()}

  def _look(self, timeout: float, refuse: bool = False) -> None:
    """Asks new nodes for their facts, and forgets nodes that have left."""
    # All nodes together have `timeout` seconds. With `refuse` the error of a
    # site is raised, otherwise it is printed.
    here = self._keys = self._channel.nodes()
    self._known = {n: facts for n, facts in self._known.items() if n in here}
    new = [node for node in here if node not in self._known]
    if not new:
      return
    limit = AGAIN_S if self._silent.issuperset(new) else HELLO_S
    greeted = ((node, self._hello) for node in new)
    limit = min(limit, timeout)
    replies = dict(self._channel.ask(codec.HELLO, greeted, limit))
    self._silent = set(new) - set(replies)
    for node, data in replies.items():
      try:
        where = f'node {node}'
        answer = _read(data, where, codec.HELLO, codec.FIELDS)
        facts = read_facts(answer.fields, where)
        self._check(facts, here[node])
        self._known[node] = facts
      except errors.FedReIDError as error:
        if refuse:
          raise
        if self._refused.get(node) != error.line():
          self._say(f'a site was refused: {error.line()}')
        self._refused[node] = error.line()

  @property
  def owners(self) -> dict[str, str]:
    """The key that first bore each name of a site of the run."""
    return dict(self._owners)

  def _check(self, facts: Facts, key: str) -> None:
    here, there = __version__, facts.versions.get('fedreid_jax')
    if here != there:
      raise errors.ConfigError(
        f'fedreid_jax {there} there, {here} here',
        f'site {facts.name}',
        'install the same version',
      )
    if self._owners.get(facts.name, key) != key:
      raise errors.DataError(
        'this name belongs to another key, which first bore it',
        f'site {facts.name}',
        'give it a --name of its own; if the key was lost, start the run again '
        'with --restart',
      )
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
  if type(data) is not bytes or len(data) > NO_ARRAYS:
    return False
  try:
    return codec.unpack(data, '').kind == codec.STRANGER
  except errors.IntegrityError:  # reported when the reply is read
    return False


def _read(data: bytes, name: str, kind: str, largest: int) -> codec.Message:
  """Unpacks a reply to `kind`, or raises the error in a reply FAILED."""
  # Another form than bytes is refused by `unpack`.
  if type(data) is bytes and len(data) > largest:
    raise errors.IntegrityError(
      f'an answer of {len(data):,} bytes, of at most {largest:,}',
      name,
      'install the same version',
    )
  message = codec.unpack(data, name)
  if message.kind == codec.FAILED:
    # The site may send anything here: other forms give an InternalError.
    told = message.fields.get('error')
    code, *parts = told if isinstance(told, list) and len(told) == 4 else [0]
    found = CODES.get(code if type(code) is int else 0, errors.InternalError)
    texts = [codec.printable(str(part)) for part in parts]
    raise found(*(texts or ['an error without a reason', name]))
  if message.kind != kind:
    raise errors.IntegrityError(
      f'an answer {codec.printable(message.kind)!r} to a message {kind!r}',
      name,
      'install the same version',
    )
  return message
