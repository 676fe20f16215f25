"""DFH: domain and feature hallucination from shared statistics.

Yang, Zhong, Luo, Li and Sebe, "Federated and Generalized Person
Re-identification through Domain and Feature Hallucinating". The domain feature
statistics (DFS) of client i, over identities j whose features F have mean mu_ij
and biased variance s_ij (eq. 3.1):

  m_i = mean_j mu_ij, v_i = var_j mu_ij, p_i = mean_j s_ij, q_i = var_j s_ij.

A client sends them after local training (and once before round 0), and the
server sends all of them to every client. Each step samples, for every domain k,
a mean M_k = m_k + sqrt(v_k) e1 and a variance V_k = p_k + sqrt(q_k) e2. With
b = BN(F_i) the features of the batch, normalised by its moments, the step
hallucinates

  F_k = M_k + sqrt(V_k) b for k != i                (feature, eq. 3.2)
  F_nov = sum_k w_k M_k + sqrt(sum_k w_k V_k) b     (domain), w ~ Dir(alpha).

The ablations of the paper compute F_nov from features instead (table 2):
Dirichlet-MixUp is sum_k w_k F_k, w ~ Dir(alpha); Feature-MixUp is u F_a +
(1 - u) F_b, u uniform on [0, 1] (Beta(1, 1)), of two different domains a and b.
In both, F_i are the features of the images (`mix_own='raw'`) or hallucinated
like the others.

  L = L_ori + lam [ L_tri(F_nov) + 1/(N-1) sum_{k != i} L_tri(F_k) ] (eq. 3.6)

The statistics are measured on the client's trained model in evaluation mode,
with moments of batch normalisation that are re-estimated at its weights on the
same images (`method.batch_stats`). The running moments follow the weights with
a delay, and statistics measured with them are too large: they make the weights
grow, which makes the statistics grow. The metric `sigma_ratio` is the root mean
square of sqrt(p_i) over the root mean square of the batch's standard deviation;
it is below 1 if statistics are measured in the mode in which they are used.

With `noise`, the statistics are noisy sums in which each identity is bounded
(`algorithms.statistics.moments`): features are clipped to the distance
`clip` from the mean that the client released before, or from 0 before round 0.
A client releases its statistics once before the first round and then every
`every` rounds, 1 + floor(T / `every`) times in T rounds, each time by a
Gaussian mechanism of noise multiplier `noise`; in other rounds it repeats the
statistics that the server has. The model needs the guarantee of `dpsgd` as
well, which is composed with this one. Epsilon holds for noise on real numbers:
attacks on the rounding of the noise, which is float32, are not covered
(docs/privacy.md).

`normalise='released'` replaces the moments of the batch in b by statistics that
the client has released: the mean m_i and the variance v_i + p_i plus a tenth of
its mean over channels. With the cross-entropy, the loss of an image is then a
function of this image alone. `dpsgd` needs this, because features of one
identity that are normalised by their own moments lose their mean. With `dpsgd`
every identity of a step has separate samples.

Deviations from the paper: `clip`, `noise`, `moments`, `every` and
`normalise='released'` are not in it and are off by default. It does not state
whether F is the pooled feature or its normalisation, for which its group's code
uses the same name, pool5. Both readings are implemented, each with the
classifier, the triplet loss, the statistics, the hallucinated features of table
5 and retrieval in one space: `space='f'`, F is the pooled feature of a network
without a neck, and `space='b'`, F is the embedding after the neck. V_k is
sampled from a normal distribution with mass below zero, which the paper does
not discuss; samples are clamped at 1e-6 before mixing (`negative_variance`),
and their share is a metric, separate from the share of dead channels. DFS and
weights are sampled at every step, as in the introduction of the paper; its
Algorithm 1 samples once a round (`resample='round'`), and writes client i where
k is meant. Weights of the mean are numbers of images (eq. 3.7), not of
identities (section 3). There is no released code of the method.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.algorithms.statistics import moments
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat, Metrics, Outputs
from fedreid_jax.losses import hallucination, identity, metric
from fedreid_jax.losses.hallucination import Drawn
from fedreid_jax.method import accounting
from fedreid_jax.method.accounting import Mechanism, Released
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  DomainStatistics,
  Participants,
  ServerHooks,
  broadcast_state,
  replace_rows,
)
from fedreid_jax.method.contexts import (
  LossCtx,
  RoundEndCtx,
  ServerInitCtx,
)
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.models.layers import norm

# The field of `Outputs` that corresponds to F in each reading of the paper.
SPACES = {'b': 'embedding', 'f': 'feature'}
# Names of the methods of table 2 by their novel domain.
METHODS: dict[hallucination.Novel, str] = {
  'dirichlet': 'DFH',
  'dirichlet_mixup': 'FH + Dirichlet-MixUp',
  'feature_mixup': 'FH + Feature-MixUp',
  'none': 'FH',
}
# Part of the mean variance that is added to the variance of each channel.
FLOOR = 0.1
# Number of a use of the round's key. Steps fold their number into the same key,
# and none is as large.
NOISE = 2**31 - 1
EXPOSES = (
  'it sends statistics of persons, which need dpsgd, dfh.noise, '
  "dfh.loss='identity' and dfh.normalise='released'"
)


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of DFH."""

  lam: Annotated[
    float, Range(0), Mark.STRENGTH, 'weight of the hallucinated losses'
  ] = 5.0
  alpha: Annotated[
    tuple[float, ...],
    Range(1e-9),
    'concentration of the Dirichlet distribution: one value for all domains, '
    "or one per domain in the order of the clients' names",
  ] = (1.0,)
  margin: Annotated[
    float, Range(0), 'margin of the triplet loss on hallucinated features'
  ] = 0.5
  space: Annotated[
    Literal['f', 'b'],
    'features: pooled (f, with model.neck=none, so that classifier and '
    'retrieval use them as well) or embeddings (b)',
  ] = 'f'
  novel: Annotated[
    hallucination.Novel,
    'construction of the novel domain; none omits its term',
  ] = 'dirichlet'
  loss: Annotated[
    Literal['triplet', 'identity'], 'loss on hallucinated features (table 5)'
  ] = 'triplet'
  resample: Annotated[
    Literal['step', 'round'],
    'sample statistics and weights at every step or every round',
  ] = 'step'
  negative_variance: Annotated[
    hallucination.Negative, 'treatment of a variance sampled below zero'
  ] = 'clamp'
  mix_weights: Annotated[
    hallucination.Mix, 'mixup weights per batch or per sample'
  ] = 'batch'
  mix_own: Annotated[
    hallucination.Own, 'features of the own domain in a mixup'
  ] = 'raw'
  min_identities: Annotated[
    int,
    Range(1),
    'least number of identities of a client; the statistics of one identity '
    'reveal its mean feature',
  ] = 2
  normalise: Annotated[
    Literal['batch', 'released'],
    'moments of b: of the batch, or of the statistics that the client has sent',
  ] = 'batch'
  clip: Annotated[
    float,
    Range(0),
    'largest distance of a feature from the mean that the client sent before; '
    '0 for none',
  ] = 0.0
  noise: Annotated[
    float,
    Range(0),
    'standard deviation of the noise on the statistics, over what one identity '
    'can change; needs clip and dpsgd',
  ] = 0.0
  moments: Annotated[
    Literal['all', 'means'],
    'statistics that are sent: means does without v and q, which are then zero',
  ] = 'all'
  every: Annotated[
    int,
    Range(0),
    'rounds between new statistics; 0 sends those before round 0 only',
  ] = 1

  def releases(self, rounds: int) -> int:
    """Returns how often a client sends new statistics."""
    return 1 + (rounds // self.every if self.every else 0)


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  options, neck = given.options, given.config.model.neck
  pooled = options.space == 'f'
  yield (
    pooled != (neck == 'none'),
    f'{given.name}.space',
    f'{options.space!r} with neck {neck!r}: statistics, classifier and '
    'retrieval would use different features',
    "set model.neck='none'" if pooled else "set it to 'f', or choose a neck",
  )
  private = any(c.client and c.client.gradient for c in given.others)
  yield (
    private and not options.noise,
    f'{given.name}.noise',
    'noise on gradients does not protect statistics that are sent without',
    f'set it and {given.name}.clip above 0',
  )
  yield (
    private and options.loss != 'identity',
    f'{given.name}.loss',
    'a loss of triplets is no function of one person, and no gradient of one '
    'person bounds it',
    "set it to 'identity'",
  )
  yield (
    private and options.normalise != 'released',
    f'{given.name}.normalise',
    'moments of the images of one person would take away their mean',
    "set it to 'released'",
  )


def make(options: Options = Options()) -> Component:
  """Builds the component.

  Raises:
    ConfigError: if `alpha` is empty, or if there is noise without a bound.
  """
  if not options.alpha:
    raise errors.ConfigError(
      'alpha is empty',
      'dfh.alpha',
      'give one value for all domains or one per domain',
    )
  if options.noise and not options.clip:
    raise errors.ConfigError(
      'noise on statistics without a bound guarantees nothing',
      'dfh.clip',
      'set it above 0, about the norm of a feature',
    )
  separable = (options.loss, options.normalise) == ('identity', 'released')
  return Component(
    'dfh',
    client=ClientHooks(
      loss=functools.partial(_hallucinated_loss, options),
      data_pass=moments.data_pass(
        functools.partial(_represent, options), options.clip
      ),
      round_end=functools.partial(_send, options),
    ),
    server=ServerHooks(
      init=functools.partial(_no_statistics, options),
      receive=replace_rows,
      message=broadcast_state,
    ),
    statistics=DomainStatistics(
      SPACES[options.space],
      functools.partial(_draw, options),
      functools.partial(_novel, options) if options.novel != 'none' else None,
      METHODS[options.novel],
    ),
    # Before the first round too, because its loss needs the statistics of all.
    properties=(
      'before_first_round',
      *(('separable',) if separable else ()),
    ),
    bind=functools.partial(_check, options),
    released=_released(options) if options.noise else EXPOSES,
    warn=_warn,
  )


def _released(options: Options) -> Released:
  def mechanisms(rounds: int) -> list[Mechanism]:
    return [Mechanism(options.noise, 1.0, options.releases(rounds))]

  every = 'round' if options.every == 1 else f'{options.every} rounds'
  later = f' and every {every}' if options.every else ''
  return Released(
    mechanisms,
    f'statistics of dfh: noise {accounting.exact(options.noise)}, '
    f'before round 0{later}',
  )


def _represent(options: Options, outputs: Outputs) -> Array:
  """Returns F in the chosen reading of the paper, `[B, D]`."""
  return getattr(outputs, SPACES[options.space])


def _send(
  options: Options, state: tuple[()], ctx: RoundEndCtx
) -> tuple[tuple[()], Array]:
  """Returns new statistics, or the ones that the server already has."""
  squares, every = options.moments == 'all', options.every
  if options.clip:
    key = jax.random.fold_in(ctx.key, NOISE)
    found = moments.release(
      key, ctx.data_pass, options.clip, options.noise, squares
    )
  else:
    found = moments.statistics(ctx.data_pass)
    # Rows 1 and 3 are v and q.
    found = found if squares else found.at[1::2].set(0.0)
  if every == 1 or not ctx.trained:
    return state, found
  # A repeated message is no new release and costs no epsilon.
  due = (ctx.round + 1) % every == 0 if every else False
  return state, jnp.where(due, found, ctx.message[ctx.task.index])


def _no_statistics(options: Options, ctx: ServerInitCtx) -> Array:
  if len(options.alpha) not in (1, ctx.num_clients):
    raise errors.ConfigError(
      f'{errors.counted(len(options.alpha), "value")} of alpha for '
      f'{errors.counted(ctx.num_clients, "client")}',
      'dfh.alpha',
      'give one value, or one per client',
    )
  num_features = _represent(options, ctx.outputs).shape[1]
  return jnp.zeros((ctx.num_clients, 4, num_features))


def _hallucinated_loss(
  options: Options, variables: Flat, state: tuple[()], ctx: LossCtx
) -> tuple[Array, Metrics]:
  """The loss on the hallucinated features (eq. 3.6 without L_ori)."""
  del variables, state
  dfs = jax.lax.stop_gradient(ctx.message)
  key = ctx.key if options.resample == 'step' else ctx.round_key
  draw_key, novel_key = jax.random.split(key)
  drawn = _draw(options, draw_key, dfs)
  feature = _represent(options, ctx.outputs)
  if options.normalise == 'released':
    normalised, variance = _by_released(feature, dfs[ctx.task.index])
  else:
    normalised, variance = _normalise(feature, ctx.batch.valid)
  total = known = _known_domains(options, ctx, drawn, normalised)
  within = dfs[ctx.task.index, 2].mean()
  metrics = {
    'known': known,
    'dead': drawn.dead,
    'negative': drawn.negative,
    'sigma_ratio': jnp.sqrt(within / jnp.maximum(variance.mean(), 1e-12)),
  }
  if options.novel != 'none':
    novel = _novel(
      options, novel_key, drawn, feature, normalised, ctx.task.index
    )
    metrics['novel'] = _on_hallucinated(options, ctx, novel)
    total = total + metrics['novel']
  return options.lam * total, metrics


def _draw(options: Options, key: Array, dfs: Array) -> Drawn:
  return hallucination.draw(key, dfs, options.negative_variance)


def _novel(
  options: Options,
  key: Array,
  drawn: Drawn,
  features: Array,
  normalised: Array,
  index: Array,
) -> Array:
  """Returns the features of a novel domain, `[B, D]`."""
  alpha = jnp.asarray(options.alpha, jnp.float32)
  return hallucination.novel_domain(
    key,
    options.novel,
    drawn,
    features,
    normalised,
    index,
    jnp.broadcast_to(alpha, len(drawn.means)),
    options.mix_weights,
    options.mix_own,
  )


def _known_domains(
  options: Options, ctx: LossCtx, drawn: Drawn, normalised: Array
) -> Array:
  """The mean loss on the features of the other clients' domains."""

  def on_domain(features: Array) -> Array:
    return _on_hallucinated(options, ctx, features)

  num = drawn.means.shape[0]
  every = hallucination.per_domain(drawn.means, drawn.variances, normalised)
  each = jax.vmap(on_domain)(every)
  others = jnp.arange(num) != ctx.task.index
  # The client's domain is computed as well, because its index is traced.
  return jnp.where(others, each, 0.0).sum() / max(num - 1, 1)


def _on_hallucinated(options: Options, ctx: LossCtx, features: Array) -> Array:
  """The loss on features hallucinated from the batch, `[B, D]`."""
  labels, valid = ctx.batch.labels, ctx.batch.valid
  if options.loss == 'triplet':
    return metric.hard_triplet(features, labels, valid, options.margin)
  logits = ctx.classify(features)
  return identity.cross_entropy(logits, labels, valid)


def _normalise(features: Array, valid: Array) -> tuple[Array, Array]:
  """Returns features normalised by moments of the batch, and the variance."""
  dim = features.shape[1]
  normalised, _, variance = norm.standardize(
    features, jnp.ones(dim), jnp.zeros(dim), valid
  )
  return normalised, variance


def _by_released(features: Array, own: Array) -> tuple[Array, Array]:
  """Returns features normalised by statistics `[4, D]`, and their variance."""
  mean, between, within, _ = own
  variance = between + within
  # Noise, or a constant channel, leaves a variance of about zero, by which the
  # features would diverge.
  floor = norm.EPSILON + FLOOR * variance.mean()
  return (features - mean) * jax.lax.rsqrt(variance + floor), variance


def _check(options: Options, participants: Participants) -> None:
  """Refuses clients whose statistics would reveal single persons."""
  participants.require_identities(options.min_identities, 'dfh.min_identities')


def _warn(metrics: dict[str, float]) -> str:
  """Returns a warning if shared deviations exceed the ones of the batches."""
  if metrics['sigma_ratio'] <= 1.0:
    return ''
  return (
    'the shared standard deviations within identities are larger than those of '
    'the batches (dfh_sigma_ratio is above 1)'
  )
