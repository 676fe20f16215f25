"""Errors that a user can act on, each one line with an exit code.

Commands print `error[CODE]: problem — place — remedy`; a traceback is
shown only with `--debug`. In Python errors are exceptions:

>>> import fedreid_jax as fr
>>> try:
...   fr.load_config('dfh:smoke', rounds=0)
... except fr.errors.ConfigError as error:
...   print(error.line())
error[2]: 0 is out of range — rounds — between 1 and inf
"""

import contextlib
import difflib
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

WIDTH = 80  # columns of a terminal that says nothing else
MAKE_ROOM = 'make room'  # begins the remedy for a file that is not written
REPORT = 'run again with --debug and report it'
_DISK = re.compile('no space left|quota exceeded|file too large', re.IGNORECASE)


def printable(text: str) -> str:
  """Returns a text on one line and without control characters.

  Messages contain file names and bytes of file headers, in which an escape
  sequence could hide or forge lines; it is shown as Python writes it.
  """
  text = text.replace('\n', ' ')
  return ''.join(
    c if c.isprintable() else c.encode('unicode_escape').decode() for c in text
  )


def folded(text: str, width: int = WIDTH, indent: str = '  ') -> str:
  """Returns a text in lines of at most `width` columns, of whole words.

  Lines that are added begin with the spaces of the first one and `indent`. A
  longer word, such as a path, keeps a line of its own.
  """
  lines = []
  for line in text.split('\n'):
    margin = line[: len(line) - len(line.lstrip())] + indent
    wrapped = textwrap.wrap(
      line,
      width,
      subsequent_indent=margin,
      drop_whitespace=True,
      replace_whitespace=False,
      break_long_words=False,
      break_on_hyphens=False,
    )
    lines += wrapped if len(line) > width else [line]
  return '\n'.join(lines)


def counted(number: int, one: str, many: str = '') -> str:
  """Returns a number with its noun, '1 camera' or '2 cameras'."""
  return f'{number:,} {one if number == 1 else many or f"{one}s"}'


def one_of(name: str, known: Iterable[str], more: str = '') -> str:
  """Returns the remedy for an unknown name: the nearest one, or all of them.

  `more` is what may be given in place of a name.
  """
  names = list(known)
  near = difflib.get_close_matches(name, names, 1)
  every = ', '.join((*names, *filter(None, [more and f'or {more}'])))
  return f'did you mean {near[0]}?' if near else f'one of {every}'


class DamagedCheckpointWarning(UserWarning):
  """A newer checkpoint is damaged or not complete, and an older one is used."""


class DamagedRecordWarning(UserWarning):
  """Measurements of a run were damaged; it restored them from a checkpoint."""


class ExposedSecretWarning(UserWarning):
  """Other users of the computer could read the secret of a run."""


class FedReIDError(Exception):
  """Base of every error, which ends a command with its `exit_code`."""

  exit_code = 1

  def __init__(self, what: str, where: str = '', fix: str = ''):
    self.what, self.where, self.fix = what, where, fix
    super().__init__(' — '.join(part for part in (what, where, fix) if part))

  def line(self) -> str:
    """Returns the one line shown to the user."""
    return printable(f'error[{self.exit_code}]: {self}')


class ConfigError(FedReIDError):
  """An unknown, mistyped, out-of-range or contradictory configuration."""

  exit_code = 2


class DataError(FedReIDError):
  """Images or labels that cannot be trained on or evaluated."""

  exit_code = 3


class IntegrityError(FedReIDError):
  """A checkpoint or weight file that is damaged or does not fit."""

  exit_code = 4


class DivergedError(FedReIDError):
  """Training that no longer produces finite updates."""

  exit_code = 5


class ResourceError(FedReIDError):
  """A disk, directory or device that cannot be used."""

  exit_code = 6


class InternalError(FedReIDError):
  """An error of the program itself, with no known cause on the user's side."""

  exit_code = 70


class HookError(InternalError):
  """An exception in a hook of a component (`execution.debug`).

  The original exception is its cause.
  """


class LockedError(FedReIDError):
  """A work directory that is in use by another run."""

  exit_code = 7


def invalid_audit(failed: Iterable[str], place: Path) -> IntegrityError:
  """Returns the error of an audit with failed controls."""
  return IntegrityError(
    f'audit invalid: {"; ".join(failed)}', str(place), 'do not use its figures'
  )


@contextlib.contextmanager
def on_disk(path: Path) -> Iterator[None]:
  """Adds the path to errors of writes, which libraries often leave out.

  Raises:
    ResourceError: naming the path.
  """
  try:
    yield
  except OSError as error:
    raise ResourceError(
      f'cannot be written: {error.strerror or error}',
      str(error.filename or path),
      f'{MAKE_ROOM}, or choose another place',
    ) from error


def disk_is_full(error: BaseException) -> str | None:
  """Returns the limit of a disk that an exception names, in lower case."""
  found = _DISK.search(str(error))
  return found[0].lower() if found else None
