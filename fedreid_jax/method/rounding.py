"""Numbers of a guarantee as text that never claims too much.

An upper bound must not become smaller when it is printed, and a lower bound
must not become larger. Noise and delta are printed with all their digits, so
that the text, given as an option, is the same number.
"""

import decimal

DIGITS = 4  # significant digits of a bound


def up(bound: float) -> str:
  """Returns an upper bound, rounded up to four significant digits."""
  return _rounded(bound, decimal.ROUND_CEILING)


def down(bound: float) -> str:
  """Returns a lower bound, rounded down to four significant digits."""
  return _rounded(bound, decimal.ROUND_FLOOR)


def exact(number: float) -> str:
  """Returns the shortest text from which Python reads the same number."""
  return repr(float(number)).removesuffix('.0')


def _rounded(bound: float, mode: str) -> str:
  # The binary value of 8.236 is a little above it. Its shortest text has four
  # digits, so that the number is not rounded up to 8.237.
  shortest = decimal.Decimal(repr(float(bound)))
  context = decimal.Context(prec=DIGITS, rounding=mode)
  return f'{float(context.plus(shortest)):g}'
