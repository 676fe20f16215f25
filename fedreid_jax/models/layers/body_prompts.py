"""Prompts of a transformer for parts of the body, and their attention.

"FedBPrompt" has the body distribution aware prompts (BAPM) of
`docs/methods/fedbprompt.md`. The prompts before a block are in four groups, in
this order: for the upper, the middle and the lower part of an image, and
holistic ones. With a grid of H rows of patches, part prompts attend to the
patches of the rows

  upper [0, H/2),  middle [H/4, 3H/4),  lower [H/2, H),

in divisions of whole numbers. Patches do not attend to part prompts. Tokens are
in the order of `models.backbones.vit`: the class token, prompts, registers,
patches row by row. Registers attend and are attended to as the class token.

A block gets new prompts, so that no token reads what prompts have gathered from
patches. The rows of the parts therefore change no feature. Of the mask, only
that patches do not attend to part prompts has an effect, and the three parts
are one group of as many prompts.

Prompts start as uniform(-v, v) with v = sqrt(6 / (3 P^2 + D)) for patches of P
pixels a side and D features (Jia et al., "Visual prompt tuning", ECCV 2022).
"""

import jax
import numpy as np
from flax.typing import Initializer
from jaxtyping import Bool

Groups = tuple[int, int, int, int]  # upper, middle, lower and holistic prompts


def may_attend(
  grid: tuple[int, int], groups: Groups, registers: int = 0
) -> Bool[np.ndarray, 'T T']:
  """Says to which tokens (columns) a token (row) attends.

  Args:
    grid: rows and columns of patches.
    groups: numbers of prompts.
    registers: number of tokens between prompts and patches.
  """
  rows, columns = grid
  prompts = np.repeat(np.arange(4), groups)
  # Of each token: whether it is a patch, and its row and group, or -1.
  others = 1 + len(prompts) + registers
  is_patch = np.arange(others + rows * columns) >= others
  row = np.r_[np.full(others, -1), np.repeat(np.arange(rows), columns)]
  group = np.full(len(row), -1)
  group[1 : 1 + len(prompts)] = prompts
  is_part = (group >= 0) & (group < 3)
  allowed = ~is_part[:, None] | ~is_patch  # part prompts see no patch yet
  allowed &= ~(is_patch[:, None] & is_part)
  regions = (
    (0, rows // 2),
    (rows // 4, 3 * rows // 4),
    (rows // 2, rows),
  )
  for part, (first, end) in enumerate(regions):
    seen = is_patch & (row >= first) & (row < end)
    allowed |= (group == part)[:, None] & seen
  return allowed


def initial(patch: int, width: int) -> Initializer:
  """Returns the initialiser of prompts before patches of `patch` pixels."""
  end = (6 / (3 * patch**2 + width)) ** 0.5

  def init(key, shape, dtype=np.float32, out_sharding=None):
    del out_sharding
    return jax.random.uniform(key, shape, dtype, -end, end)

  return init
