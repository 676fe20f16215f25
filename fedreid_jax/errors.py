"""Errors a user can act on: one line, what, where, what to do, an exit code.

`error[CODE]: what — where — what to do` is what the launchers print; a
traceback is shown only with `--debug`.
"""


def printable(text: str) -> str:
  """Returns a text that cannot steer a terminal, on one line.

  Names of files and bytes of their headers are in messages, and an escape
  sequence in them could hide or forge lines; it is shown as Python writes it.
  """
  text = text.replace('\n', ' ')
  return ''.join(
    c if c.isprintable() else c.encode('unicode_escape').decode() for c in text
  )


class FedReIDError(Exception):
  """Base of every error with a documented exit code.

  Attributes:
    exit_code: the code the process ends with.
  """

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


class LockedError(FedReIDError):
  """A work directory that another run holds."""

  exit_code = 7
