"""Canaries: artificial units whose presence a mechanism should hide."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

Scores = Callable[[Bool[np.ndarray, ' m'], int], Float[np.ndarray, ' m']]


class Canaries(NamedTuple):
  """The canaries of a component and their scores for the attacker.

  Attributes:
    number: of canaries, `m`.
    guesses: number of canaries that are guessed, `r`, even.
    delta: of the guarantee.
    scores: `(included, seed) -> scores` of the mechanism as it is in the run.
    silent: the same function of the mechanism without noise and with all
      canaries in every sum, for which all guesses must be right.
  """

  number: int
  guesses: int
  delta: float
  scores: Scores
  silent: Scores
