"""Regular expressions of a configuration, matched within a limit of time.

A pattern such as `(a|a)*$` takes time exponential in the length of a text that
it does not match. RE2 and other linear engines lack the lookahead that
`fedpav.shared` needs, so a backtracking engine (`regex`, of the syntax of
Python's `re`) is stopped by the processor's clock.
"""

import time

import regex

from fedreid_jax import errors

LIMIT_S = 5.0  # of the processor, for all texts one pattern meets


class Pattern:
  """A regular expression of a field, and how much time it has left."""

  def __init__(self, pattern: str, field: str):
    """Compiles a pattern.

    Args:
      pattern: in the syntax of `re`.
      field: it comes from, for messages.

    Raises:
      ConfigError: when it is none.
    """
    self._field = field
    self._left = LIMIT_S
    try:
      self._compiled = regex.compile(pattern)
    except regex.error as error:
      raise errors.ConfigError(
        f'{pattern!r}: {error}', field, 'fix the regular expression'
      ) from error
    self.groups = self._compiled.groups

  def search(self, text: str):
    """Returns the first match in a text, or None.

    Raises:
      ConfigError: when the pattern has used up its time.
    """
    return self._timed(self._compiled.search, text)

  def match(self, text: str):
    """Returns the match at the start of a text, or None.

    Raises:
      ConfigError: when the pattern has used up its time.
    """
    return self._timed(self._compiled.match, text)

  def _timed(self, find, text: str):
    start = time.thread_time()
    try:
      found = find(text, timeout=self._left)
    except TimeoutError:
      found, self._left = None, 0.0
    self._left -= time.thread_time() - start
    if self._left <= 0:
      raise errors.ConfigError(
        f'{self._compiled.pattern!r} takes more than {LIMIT_S:g} s, the last '
        f'of them on {text!r}',
        self._field,
        'write it without alternatives or repetitions of the same letters '
        'inside a repetition',
      )
    return found
