"""Features whose mean, and spread, are the same for all cameras of a target.

Images of a camera have common colours, backgrounds and viewpoints, which move
their features by a common vector: images of one camera are then nearer to each
other than images of one person. For the features f of the images of a camera c
and of a modality, with mean m_c and standard deviation s_c of each number,

  centre       f' = f - m_c
  standardise  f' = (f - m_c) / (s_c + 1e-6 max s_c)

and f' is scaled to length 1. The images of all queries and galleries of the
target are used, and no identity. This is a rule of the features at the end of
the network. Camera-based batch normalisation (Zhuang et al., "Rethinking the
distribution gap of person re-identification with camera-based batch
normalization", ECCV 2020) makes the same assumption in every normalisation
layer, in training as well, and is not implemented.

The persons that two cameras see differ, and their mean with them: a camera with
images of few persons loses a part of what tells these persons apart. A camera
with fewer than `FEWEST` images gets the moments of all images.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedreid_jax.data.federation import Images
from fedreid_jax.evaluation import distances

RULES = ('centre', 'standardise')
FEWEST = 2
# A share of the largest deviation, below which a number is constant.
CONSTANT = 1e-6


def of_images(
  features: Float[np.ndarray, 'M D'], images: Images, rule: str
) -> Float[np.ndarray, 'M D']:
  """Normalises the features of the images of a target by one of `RULES`."""
  # Visible and infrared cameras of one place may have one number.
  groups = np.stack([images.cameras, images.modalities])
  groups = np.unique(groups, axis=1, return_inverse=True)[1].ravel()
  return normalise(features, groups, rule)


def normalise(
  features: Float[np.ndarray, 'M D'],
  cameras: Int[np.ndarray, ' M'],
  rule: str,
) -> Float[np.ndarray, 'M D']:
  """Features of length 1 without the mean, or the moments, of their cameras."""
  found = np.empty(features.shape, np.float32)
  for camera in np.unique(cameras):
    own = cameras == camera
    basis = features if own.sum() < FEWEST else features[own]
    # Sums of float32 lose digits where a camera has many images.
    centred = features[own] - basis.mean(0, dtype=np.float64)
    if rule == 'standardise':
      spread = basis.std(0, dtype=np.float64)
      # All images of a camera may be equal.
      centred /= spread + max(CONSTANT * spread.max(), np.finfo(float).tiny)
    found[own] = centred
  return np.asarray(distances.normalise(jnp.asarray(found)))
