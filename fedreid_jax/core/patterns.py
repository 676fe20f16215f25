"""Regular expressions of a configuration, matched with a time limit.

A pattern such as `(a|a)*$` takes time exponential in the length of a text that
it does not match. The engine `regex`, which has the syntax of Python's `re`,
stops it after a limit of processor time.
"""

import time
from collections.abc import Callable

import regex

from fedreid_jax import errors

LIMIT_S = 5.0  # processor time per pattern, for all texts together


class Pattern:
  """A regular expression of a field, with the time that it may still take."""

  def __init__(self, pattern: str, field: str):
    """Compiles a pattern.

    Args:
      pattern: regular expression in the syntax of `re`.

    Raises:
      ConfigError: if the pattern is not a regular expression.
    """
    self._field = field
    self._left = LIMIT_S
    try:
      # RE2 and other engines with linear time lack lookahead, by which a
      # component shares all parameters but those of the classifier.
      self._compiled = regex.compile(pattern)
    except regex.error as error:
      raise errors.ConfigError(
        f'{pattern!r}: {error}', field, 'fix the regular expression'
      ) from error
    self.groups = self._compiled.groups

  def search(self, text: str) -> regex.Match[str] | None:
    """Returns the first match in a text, or None.

    Raises:
      ConfigError: if the pattern exceeds its time limit.
    """
    return self._timed(self._compiled.search, text)

  def match(self, text: str) -> regex.Match[str] | None:
    """Returns the match at the start of a text, or None.

    Raises:
      ConfigError: if the pattern exceeds its time limit.
    """
    return self._timed(self._compiled.match, text)

  def _timed(
    self, find: Callable[..., regex.Match[str] | None], text: str
  ) -> regex.Match[str] | None:
    found, limit = None, self._left
    while self._left > 0:
      start = time.thread_time()
      stopped = False
      try:
        found = find(text, timeout=limit)
      except TimeoutError:
        stopped = True
      used = time.thread_time() - start
      # The engine counts the time of all threads of the process. Only that of
      # this thread counts here, so that a busy process repeats the match.
      if stopped and used < self._left:
        limit *= max(2.0, self._left / max(used, 1e-3))
        continue
      # Every text counts, as many slow texts take as long as a very slow one.
      self._left -= used
      break
    if self._left <= 0:
      raise errors.ConfigError(
        f'{self._compiled.pattern!r} takes more than {LIMIT_S:g} s; it was '
        f'stopped at {text!r}',
        self._field,
        'do not repeat alternatives or repetitions of the same letters',
      )
    return found
