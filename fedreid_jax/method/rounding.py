"""Numbers of a guarantee as text that never claims too much.

An upper bound must not become smaller when it is printed, nor a lower bound
larger. Noise and delta are printed with all their digits, so that the text,
given as an option, is the same number.
"""

import decimal

DIGITS = 4


def up(bound: float) -> str:
  """Returns an upper bound, rounded up to four significant digits."""
  return _rounded(bound, decimal.ROUND_CEILING)


def down(bound: float) -> str:
  """Returns a lower bound, rounded down to four significant digits."""
  return _rounded(bound, decimal.ROUND_FLOOR)


def exact(number: float) -> str:
  """Returns the shortest text that is read as the same number."""
  return repr(float(number)).removesuffix('.0')


def _rounded(bound: float, mode: str) -> str:
  # The shortest text of 8.236 is not raised, though its binary value is above.
  shortest = decimal.Decimal(repr(float(bound)))
  context = decimal.Context(prec=DIGITS, rounding=mode)
  return f'{float(context.plus(shortest)):g}'
