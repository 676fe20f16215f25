"""DNS: alignment and distillation between domains after domain shifting.

Jiang et al., "Domain shifting: a generalized solution for heterogeneous
cross-modality person re-identification", ECCV 2024; a baseline of L2RW, where
the variant without modalities is called DNS*. In the network, `models.dns`, Z
are the pooled features, z = BN(Z), and Z^ is the output of the common space
shift for Z. The component adds these terms to the identity and circle losses of
the configuration:

  0.2 L_da + L_dd, with, for visible v and infrared r,

  L_da = 0.45 [MMD(Z_v, Z_r) + MMD(Z^_v, Z^_r)]
       + 0.05 [MMD(Z_v, Z^_v) + MMD(Z_r, Z^_r)],

  L_dd = sum over x in (z, Z^) of
         mean KL(softmax C_m(x) || softmax W_other(x)) + 0.25 sum_m CE(C_m(x)),

where m is the modality of an image, C_m the linear classifier of that modality
and W_m a copy of it without gradient, `W <- (1 - tau) W + tau C` before each
step. A modality without an image in the batch has no terms.

Variant `one_stream`, DNS*, does not use modalities: L_da = 0.05 MMD(Z, Z^). It
has one classifier C, and the two features teach each other, `KL(softmax C(z) ||
softmax W(Z^)) + KL(softmax C(Z^) || softmax W(z))`, with both cross-entropies.

Deviations from the paper: `one_stream` is an assumption, because L2RW states
only that modality information is removed. A client keeps W between its rounds;
W starts as the first classifier that the client receives. As in the
code, Z^ enters L_dd without a neck. Deviations from the released code: tau is
0.2, as in the code of DNS; in the code of L2RW it is 0, and W is constant.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat, Metrics, Outputs
from fedreid_jax.losses import cross_modal
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.method.contexts import LossCtx, RoundCtx
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.models import changes, reid
from fedreid_jax.models.dns import (
  DNS,
  DOMAINS,
  MODALITY_SPECIFIC_STAGES,
  Streams,
  plugins,
)

# Kernels of the domain classifiers, by domain.
Kernels = dict[str, Array]
# Moving averages of the kernels, and whether the client has trained before.
State = tuple[Kernels, Array]


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of DNS."""

  variant: Annotated[Streams, 'variant of the network'] = 'two_stream'
  tau: Annotated[
    float,
    Range(0, 1),
    'weight of the domain classifiers in their moving averages, per step',
  ] = 0.2
  alignment: Annotated[
    float,
    Range(0),
    Mark.STRENGTH,
    'weight of the distances between distributions, L_da',
  ] = 0.2
  distillation: Annotated[
    float,
    Range(0),
    Mark.STRENGTH,
    'weight of the distillation from the domain classifiers, L_dd',
  ] = 1.0


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rule for the streams of the network."""
  stages, streams = given.config.model.modality_specific_stages, given.options
  two = streams.variant == 'two_stream'
  yield (
    two != (stages > 0),
    'model.modality_specific_stages',
    f'{stages} with {given.name}.variant={streams.variant}',
    f'set it to {MODALITY_SPECIFIC_STAGES if two else 0}',
  )


def make(options: Options = Options()) -> Component:
  """Builds the component.

  Raises:
    ConfigError: when the network is built, if it is no ResNet.
  """
  variant, tau, alignment = options.variant, options.tau, options.alignment
  distillation = options.distillation
  domains = DOMAINS[variant]

  def init(key: Array, variables: Flat) -> State:
    del key
    return _kernels(variables, variant), jnp.bool_(False)

  def round_start(state: State, ctx: RoundCtx) -> State:
    averages, started = state
    first = _kernels(ctx.variables, variant)
    return trees.select(started, averages, first), jnp.bool_(True)

  def move(averages: Kernels, outputs: Outputs) -> Kernels:
    now = lax.stop_gradient(outputs.extras['domains'])
    return {name: w + tau * (now[name] - w) for name, w in averages.items()}

  def loss(
    variables: Flat, state: State, ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del variables
    modalities = ctx.batch.modalities
    own = modalities if len(domains) > 1 else jnp.zeros_like(modalities)
    members = ctx.batch.valid & (own == jnp.arange(len(domains))[:, None])
    shifted = ctx.outputs.extras['shifted']
    da = cross_modal.alignment(ctx.outputs.feature, shifted, members)
    # W moves before it is used. A loss cannot change the state, so `post_step`
    # repeats the move.
    averages = move(state[0], ctx.outputs)
    dd = _distillation(ctx, averages, domains, own, members)
    metrics = {'alignment': da, 'distillation': dd}
    total = jnp.float32(0.0)
    for weight, part in ((alignment, da), (distillation, dd)):
      # A part of weight zero is not added: parameters that only it depends on
      # have no gradient, and so no weight decay.
      if weight:
        total += weight * part
    return total, metrics

  def post_step(state: State, ctx: LossCtx) -> State:
    averages, started = state
    return move(averages, ctx.outputs), started

  return Component(
    'dns',
    network=functools.partial(_network, domains),
    client=ClientHooks(
      init=init, round_start=round_start, loss=loss, post_step=post_step
    ),
    properties=('single_images',),
  )


def _network(domains: tuple[str, ...], network: nn.Module) -> nn.Module:
  rule = plugins(changes.dtype(network))
  shifted = changes.insert(network, rule, 'dns', resnet_only=True)
  return changes.wrap(
    shifted, 'dns', lambda net: DNS(net, net.num_classes, domains)
  )


def _kernels(variables: Flat, variant: Streams) -> Kernels:
  """The kernels of a variant's classifiers."""
  return {d: variables[f'params/domain_{d}/kernel'] for d in DOMAINS[variant]}


def _distillation(
  ctx: LossCtx,
  averages: Kernels,
  domains: Sequence[str],
  own: Array,
  members: Array,
) -> Array:
  """Returns L_dd; `own` is the domain of each image, int32 `[B]`."""

  def score(x: Array, kernels: Kernels, domain: Array) -> Array:
    every = jnp.stack([x @ kernels[name] for name in domains])
    picked = every[domain, jnp.arange(len(x))]
    return reid.mask_identities(picked, ctx.task.num_identities)

  z, shifted = ctx.outputs.embedding, ctx.outputs.extras['shifted']
  pairs = ((z, z), (shifted, shifted))
  if len(domains) == 1:
    pairs = ((z, shifted), (shifted, z))
  halves = [
    cross_modal.distillation(
      score(taught, ctx.outputs.extras['domains'], own),
      score(teacher, averages, len(domains) - 1 - own),
      ctx.batch.labels,
      members,
    )
    for taught, teacher in pairs
  ]
  return halves[0] + halves[1]
