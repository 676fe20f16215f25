"""SNR: style normalisation and restitution, trained by a federation.

Jin et al., Style Normalization and Restitution for Generalizable Person
Re-identification, CVPR 2020; in a federation it is a baseline of DFH (table 1).

After each stage b the network normalises the maps F of every image to F~. A
gate selects a part of the removed style; F~+ is F~ with this part restored, and
F~- is F~ with the other part (`models/layers/inserted.py`). With
d = 1/2 - s cos of the averages of two images' maps, and one positive p and one
negative n for each anchor a, the same for F~, F~+ and F~-,

  L+ = softplus(d+(a,p) - d(a,p)) + softplus(d(a,n) - d+(a,n))
  L- = softplus(d(a,p) - d-(a,p)) + softplus(d-(a,n) - d(a,n))
  L = L_ori + sum_b w_b mean_a (L+ + L-),     w = (0.1, 0.1, 0.5, 0.5).

`loss='entropy'` compares the mean entropies of a linear classifier of the
averages instead, softplus(H+ - H) + softplus(H - H-), and trains it by the
cross-entropy of F~+:

  w = (0.01, 0.01, 0.01, 0), cross-entropy (0, 0, 0.01, 0).

The parameters of the modules are shared like those of the backbone. The
classifiers must be personal, because identities differ between clients. With
DFH, only the original batch enters L.

Deviations from the paper: DFH states neither the scale s nor w; s = 1/2 and the
weights above are this package's reading of the original method. The average of
F~ is the bias of the normalisation, the same for every image, so its d is 1/2
while that bias is zero and 0 afterwards, for every pair. Deviations from the
released code: the code of the original authors has the entropy form only, on
stages 1 to 3, and freezes batch normalisation; an independent implementation of
the distance form has s = 1 and a gate without biases; a federated one by the
first author of DFH has the entropy form with w = (1, 1, 1, 0), without the
triplet loss.
"""

import dataclasses
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax import errors
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.losses import identity, style
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.method.contexts import LossCtx
from fedreid_jax.models import changes, reid
from fedreid_jax.models.layers import inserted
from fedreid_jax.models.layers.inserted import StyleFeatures

WEIGHTS = {
  'distance': (0.1, 0.1, 0.5, 0.5),
  'entropy': (0.01, 0.01, 0.01, 0.0),
}


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of SNR."""

  loss: Annotated[
    Literal['distance', 'entropy'],
    'compare distances within triplets, or entropies of stage classifiers',
  ] = 'distance'
  weights: Annotated[
    tuple[float, ...],
    Range(0),
    "weight of each stage's loss; a network of fewer stages uses the last "
    'ones; empty means those of the original method',
  ] = ()
  dist_scale: Annotated[
    float, Range(0), 'distance is 0.5 minus this times the cosine'
  ] = 0.5
  identity_weights: Annotated[
    tuple[float, ...],
    Range(0),
    "entropy: weights of the stage classifiers' cross-entropy",
  ] = (0.0, 0.0, 0.01, 0.0)


def make(options: Options = Options()) -> Component:
  """Builds the component.

  Raises:
    ConfigError: when the network is built, if it has no stages, or when a step
      is traced, if their number does not fit.
  """
  loss, weights, dist_scale = options.loss, options.weights, options.dist_scale
  identity_weights = options.identity_weights

  def style_loss(
    variables: Flat, state: tuple[()], ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del variables, state
    labels, valid = ctx.batch.labels, ctx.batch.valid
    stages = _stages(ctx.outputs.extras)
    causal = _last(weights or WEIGHTS[loss], len(stages), 'weights')
    total = jnp.float32(0)
    metrics: Metrics = {}
    for i, features in enumerate(stages):
      if loss == 'distance':
        key = jax.random.fold_in(ctx.key, i)
        value = style.distance(key, *features[:3], labels, valid, dist_scale)
      else:
        assert features.logits is not None  # made by `network`
        logits = reid.mask_identities(features.logits, ctx.task.num_identities)
        value = style.entropy(logits, valid)
        entropy = identity.cross_entropy(logits[1], labels, valid)
        supervised = _last(identity_weights, len(stages), 'identity_weights')
        if supervised[i]:
          total += supervised[i] * entropy
      metrics[f'stage{i + 1}'] = value
      if causal[i]:  # otherwise its classifier would have a zero gradient
        total += causal[i] * value
    return total, metrics

  def network(module: nn.Module) -> nn.Module:
    # Only entropies need classifiers.
    classes = changes.num_classes(module) if loss == 'entropy' else None
    return changes.insert(module, inserted.after_stages(classes), 'snr')

  return Component(
    'snr',
    network=network,
    client=ClientHooks(loss=style_loss),
    properties=('single_images',),
  )


def _stages(extras: dict[str, Any]) -> list[StyleFeatures]:
  """The outputs of the SNR modules in the order of the stages."""
  return [extras[name] for name in sorted(extras) if name.startswith('snr_')]


def _last(values: tuple[float, ...], num: int, field: str) -> tuple[float, ...]:
  if len(values) < num:
    raise errors.ConfigError(
      f'{len(values)} {field} for {num} stages',
      f'snr.{field}',
      'give one per stage',
    )
  return values[-num:]
