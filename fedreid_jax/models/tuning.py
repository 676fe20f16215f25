"""Training of few parameters beside a backbone that stays as it is.

The parameters of the backbone are constants of the model, so that they are
neither states of clients nor sent. `model.tune` adds parameters to its kernels
W, which are products of features with [in, out] or convolutions with
[kh, kw, in, out]:

  lora     W + (alpha / rank) A B with A [kh kw in, rank] and B [rank, out]:
           Hu et al., "LoRA: low-rank adaptation of large language models"
           (ICLR 2022), for a convolution on its kernel as a matrix
  adapter  W + D at the centre of a convolution of several positions, D
           [in, out]: the parallel adapters, 1x1 convolutions beside others, of
           Rebuffi et al., "Efficient parametrization of multi-domain deep
           neural networks" (CVPR 2018)

B and D start at zero, so that the first model is the pretrained one.
`model.trained` names parameters of the backbone that are trained themselves,
for example biases, or the prompt tokens of a transformer. Running statistics,
neck and classifier are not changed by these fields.
"""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Key

from fedreid_jax import errors
from fedreid_jax.core import patterns, trees, types
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.models.options import Model

BACKBONE = r'params/(.+/)?backbone/'
A, B, D = '_lora_a', '_lora_b', '_adapter'
# Tokens that a transformer may gain (`models.backbones.vit`).
PROMPTS = BACKBONE + r'(.+/)?prompt_\d+$'


class Plan(NamedTuple):
  """The fields of `config.model` that this module uses."""

  tune: str  # '', 'lora' or 'adapter'
  trained: str  # pattern of parameters of the backbone
  at: str  # pattern of kernels that get parameters
  rank: int
  alpha: float


def plan(config: Model) -> Plan | None:
  """Returns the plan of `config.model`, None if all parameters are trained."""
  if not (config.tune or config.trained):
    return None
  return Plan(
    *(config.tune, config.trained, config.tune_at),
    *(config.tune_rank, config.tune_alpha),
  )


def wrap(model: types.Model, base: Flat, chosen: Plan) -> types.Model:
  """Returns a model whose variables are those that are trained.

  Args:
    model: of the whole network.
    base: variables of the whole network; those of the backbone are constants,
      and the others are initial values.

  Raises:
    ConfigError: if a pattern has no match.
  """
  constants = frozen(base, chosen)
  kernels = _kernels(constants, chosen)

  def init(key: Key[Array, '']) -> Flat:
    # Classifiers depend on the key; the rest of the file is kept.
    fresh = model.init(key)
    own = {n: x for n, x in fresh.items() if n not in constants}
    backbone, _ = trees.split(base, BACKBONE)
    statistics, _ = trees.split(base, 'batch_stats/')
    own |= {n: x for n, x in (backbone | statistics).items() if n in own}
    return own | _added(kernels, chosen, jax.random.fold_in(key, 1))

  def whole(variables: Flat) -> Flat:
    return merged(variables, constants, chosen)

  def apply(variables: Flat, *args: Any, **given: Any):
    outputs, statistics = model.apply(whole(variables), *args, **given)
    return outputs, {n: x for n, x in statistics.items() if n in variables}

  def measure(variables: Flat, *args: Any, **given: Any):
    return model.measure(whole(variables), *args, **given)

  def classify(variables: Flat, *args: Any, **given: Any):
    return model.classify(whole(variables), *args, **given)

  return types.Model(init, apply, measure, classify)


def merged(variables: Flat, base: Flat, chosen: Plan) -> Flat:
  """Returns the variables of the whole network.

  Args:
    variables: those that are trained.
    base: those that are not.
  """
  added = {n for n in variables if is_added(n)}
  found = {**base, **{n: x for n, x in variables.items() if n not in added}}
  for name in added:
    if name.endswith(A):
      kernel = name.removesuffix(A)
      low_rank = variables[name] @ variables[kernel + B]
      scale = chosen.alpha / chosen.rank
      update = scale * low_rank.reshape(found[kernel].shape)
      found[kernel] = found[kernel] + update
    elif name.endswith(D):
      kernel = name.removesuffix(D)
      kh, kw = found[kernel].shape[:2]
      centre = jnp.asarray(found[kernel]).at[kh // 2, kw // 2]
      found[kernel] = centre.add(variables[name])
  return found


def is_added(name: str) -> bool:
  """Whether a parameter is one that `model.tune` adds."""
  return name.endswith((A, B, D))


def may_be_new(name: str) -> bool:
  """Whether a parameter may be absent in a trained model to start from.

  These are parameters that `model.tune` adds, and prompts.
  """
  return is_added(name) or bool(re.match(PROMPTS, name))


def frozen(base: Flat, chosen: Plan) -> Flat:
  """Returns the parameters of the whole network `base` that stay constant.

  Raises:
    ConfigError: if the pattern of those that are trained has no match.
  """
  backbone, _ = trees.split(base, BACKBONE)
  if not chosen.trained:
    return backbone
  matches = patterns.Pattern(chosen.trained, 'model.trained').match
  trained = {n for n in backbone if matches(n)}
  if not trained:
    raise errors.ConfigError(
      f'no parameter of the backbone has a name like {chosen.trained!r}',
      'model.trained',
      f'its first one is {min(backbone)}',
    )
  return {n: x for n, x in backbone.items() if n not in trained}


def _kernels(frozen: Flat, chosen: Plan) -> Flat:
  """Returns the kernels that get parameters."""
  if not chosen.tune:
    return {}
  matches = patterns.Pattern(chosen.at, 'model.tune_at').match
  found = {
    n: x
    for n, x in frozen.items()
    if n.endswith('/kernel')
    and matches(n)
    and (chosen.tune == 'lora' or (x.ndim == 4 and x.shape[0] * x.shape[1] > 1))
  }
  if not found:
    raise errors.ConfigError(
      f'no kernel for {chosen.tune} has a name like {chosen.at!r}',
      'model.tune_at',
      "set it to '.*'; adapters need convolutions of several positions",
    )
  return found


def _added(kernels: Flat, chosen: Plan, key: Key[Array, '']) -> Flat:
  """Returns the initial values of the added parameters."""
  found: Flat = {}
  keys = jax.random.split(key, max(len(kernels), 1))
  for one, (name, kernel) in zip(keys, sorted(kernels.items()), strict=False):
    out = kernel.shape[-1]
    if chosen.tune == 'lora':
      rows = kernel.size // out
      noise = jax.random.normal(one, (rows, chosen.rank), jnp.float32)
      found[name + A] = noise / rows**0.5
      found[name + B] = jnp.zeros((chosen.rank, out), jnp.float32)
    else:
      found[name + D] = jnp.zeros(kernel.shape[-2:], jnp.float32)
  return found
