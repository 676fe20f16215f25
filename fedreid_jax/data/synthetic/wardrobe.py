"""Colours of the garments of the second version.

A domain has a sample of the colours below. Fashions differ between domains in
the colours of a family, and little in the sizes of the families.
"""

import jax.numpy as jnp
import numpy as np

from fedreid_jax.core.types import Array
from fedreid_jax.data.synthetic import appearance, parameters
from fedreid_jax.data.synthetic.parameters import Domain

PALETTE = 48  # colours of a kind of garment in a domain
TOPS, LEGWEAR, SHOES, BAGS = range(4)
_NEUTRAL, _BLUE, _EARTH, _RED, _OTHER = range(5)
FAMILIES = 5

# Family, reflectance in red, green and blue, and how many in a thousand tops,
# trousers or skirts, shoes and bags have the colour.
_COLOURS = np.array(
  [
    (_NEUTRAL, 0.05, 0.05, 0.06, 150, 200, 330, 280),  # black
    (_NEUTRAL, 0.16, 0.17, 0.19, 80, 110, 80, 110),  # charcoal
    (_NEUTRAL, 0.40, 0.41, 0.42, 100, 100, 80, 100),  # grey
    (_NEUTRAL, 0.88, 0.88, 0.86, 150, 60, 240, 30),  # white
    (_BLUE, 0.08, 0.11, 0.24, 80, 110, 50, 80),  # navy
    (_BLUE, 0.22, 0.32, 0.48, 50, 120, 10, 20),  # denim
    (_BLUE, 0.52, 0.66, 0.80, 50, 30, 10, 10),  # light blue
    (_BLUE, 0.12, 0.26, 0.62, 30, 10, 10, 30),  # royal blue
    (_EARTH, 0.74, 0.66, 0.52, 50, 80, 30, 70),  # beige
    (_EARTH, 0.33, 0.21, 0.13, 30, 50, 60, 110),  # brown
    (_EARTH, 0.33, 0.34, 0.18, 30, 30, 10, 20),  # olive
    (_RED, 0.68, 0.10, 0.11, 40, 10, 10, 40),  # red
    (_RED, 0.36, 0.08, 0.13, 30, 10, 5, 20),  # burgundy
    (_RED, 0.84, 0.56, 0.60, 20, 10, 5, 10),  # pink
    (_OTHER, 0.83, 0.42, 0.12, 10, 0, 2, 2),  # orange
    (_OTHER, 0.85, 0.72, 0.20, 20, 0, 2, 2),  # yellow
    (_OTHER, 0.13, 0.42, 0.22, 30, 10, 2, 2),  # green
    (_OTHER, 0.10, 0.42, 0.44, 20, 5, 2, 2),  # teal
    (_OTHER, 0.36, 0.20, 0.45, 20, 5, 2, 2),  # purple
  ],
  np.float32,
)
_FAMILY = np.eye(FAMILIES, dtype=np.float32)[_COLOURS[:, 0].astype(int)]
_RGB = _COLOURS[:, 1:4]
_SHARES = _COLOURS[:, 4:].T / _COLOURS[:, 4:].sum(0)[:, None]  # [4, N]

# The kind of each material of a person. The values of skin and hair are not
# used, since `appearance` draws their colours.
_KIND = np.full(10, TOPS)
_KIND[[parameters.LOWER, parameters.LOWER_ACCENT]] = LEGWEAR
_KIND[parameters.SHOE], _KIND[parameters.BAG] = SHOES, BAGS


def shares(draws: Array, season: Array) -> Array:
  """Returns the fraction of each colour in each kind of garment, `[4, N]`.

  Args:
    draws: `[N + FAMILIES]`, uniform.
    season: 0 summer .. 1 winter; colours are darker in winter.
  """
  fashion, size = draws[: len(_RGB)], draws[len(_RGB) :]
  light = jnp.array(_RGB @ np.array(appearance.LUMINANCE, np.float32))
  # The draw changes a share by a quarter to four times.
  fashion = jnp.exp(2.8 * (fashion - 0.5) - 1.2 * season * light)
  weights = _SHARES * fashion
  # The shares of the families are then restored within 15 %, so that no family
  # is the clothing of a whole domain.
  wanted = (_SHARES @ _FAMILY) * (0.85 + 0.3 * size)
  weights = weights * ((wanted / (weights @ _FAMILY)) @ _FAMILY.T)
  return weights / weights.sum(axis=1, keepdims=True)


NUM_DRAWS = len(_RGB) + FAMILIES + 5 * 4 * PALETTE


def palette(draws: Array, season: Array) -> Array:
  """Samples the colours of a domain, `[4, PALETTE, 3]`, by kind of garment.

  Args:
    draws: `[NUM_DRAWS]`, uniform.
    season: 0 summer .. 1 winter.
  """
  few = len(_RGB) + FAMILIES
  limits = jnp.cumsum(shares(draws[:few], season), axis=1)
  own = draws[few:].reshape(5, 4, PALETTE)
  # One colour in each of equal parts of the distribution.
  place = (jnp.arange(PALETTE) + own[0]) / PALETTE
  which = (place[..., None] > limits[:, None]).sum(axis=-1)
  # The last sum of float32 shares can be below 1.
  colours = jnp.array(_RGB)[jnp.minimum(which, len(_RGB) - 1)]
  shift = jnp.moveaxis(own[1:4] - 0.5, 0, -1)
  value = 1 + 0.5 * (own[4, ..., None] - 0.5)
  return jnp.clip(colours * (1 + 0.3 * shift) * value, 0.02, 0.95)


def choose(domain: Domain, material: Array | int, pick: Array) -> Array:
  """Returns colours of a kind of garment, `[..., 3]`.

  Args:
    domain: the domain, with a palette for each kind of garment.
    material: rows of the material table, `[...]`.
    pick: uniform draws `[...]`.
  """
  kind = jnp.array(_KIND)[material]
  return domain.palette[kind, (pick * PALETTE).astype(jnp.int32)]
