"""A linear network, uploads and contexts made by hand, shared by tests."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import prng, trees, types
from fedreid_jax.method import optimizers
from fedreid_jax.method.component import Component
from fedreid_jax.method.contexts import AggregationCtx
from fedreid_jax.method.sums import Gather
from fedreid_jax.models import reid
from fedreid_jax.round import compose
from fedreid_jax.round.server import fold as fold_
from fedreid_jax.round.server.arithmetic import Float32
from fedreid_jax.round.settings import Settings

KERNEL = 'params/backbone/kernel'
HEAD = 'params/classifier/kernel'
MEAN = 'batch_stats/neck/mean'
# With it, uploads are gathered and not summed.
READER = Component('reader', properties=('needs_uploads',))


def variables(kernel=0.0, scores=0.0, mean=0.0):
  """Variables of the linear network: 3 pixels, 2 features, 3 identities."""
  filled = {
    KERNEL: (kernel, (3, 2)),
    HEAD: (scores, (2, 3)),
    MEAN: (mean, (2,)),
  }
  return {
    name: jnp.broadcast_to(jnp.asarray(value, jnp.float32), shape)
    for name, (value, shape) in filled.items()
  }


def _measure(variables, images, *, mask=None, num_identities=None, **_):
  """Subtracts nothing, as in training; no layer has moments."""
  outputs, _ = _apply(
    variables, images, train=True, num_identities=num_identities, mask=mask
  )
  return outputs, {}


def _apply(variables, images, *, train, num_identities=None, mask=None, **_):
  """Subtracts the running mean in evaluation, updates it in training."""
  feature = images.reshape(images.shape[0], -1)
  embedding = feature @ variables[KERNEL]
  _, buffers = trees.trainable(variables)
  if train:
    batch = embedding.mean(
      axis=0, where=None if mask is None else mask[:, None]
    )
    buffers = {**buffers, MEAN: 0.9 * variables[MEAN] + 0.1 * batch}
  else:
    embedding = embedding - variables[MEAN]
  logits = reid.mask_identities(embedding @ variables[HEAD], num_identities)
  return types.Outputs(feature, embedding, logits), buffers


LINEAR = types.Model(
  init=lambda key: variables(),
  apply=_apply,
  measure=_measure,
  classify=lambda own, x, num=None: reid.mask_identities(x @ own[HEAD], num),
)


def transform(images):
  """Stored pixels, an image of three, as tenths."""
  return images.astype(jnp.float32) / 10.0


def train_transform(key, images, modalities=None):
  """The same with the three pixels turned by one place or two, never none."""
  del modalities
  return jnp.roll(transform(images), jax.random.randint(key, (), 1, 3), axis=-1)


def pixels(rows):
  """Stored images `[M, 1, 1, 3]`."""
  return np.asarray(rows, np.uint8).reshape(-1, 1, 1, 3)


def context(kind, **fields):
  """A context of which only some fields are given, None for the others."""
  names = [field.name for field in dataclasses.fields(kind)]
  return kind(**(dict.fromkeys(names) | fields))


def uploads(shared, sizes=None, steps=None, index=None, **messages):
  """Uploads `[K]` of leaves `[K, ...]`, one image and one step each."""
  shared = {n: jnp.asarray(x, jnp.float32) for n, x in shared.items()}
  num = len(next(iter(shared.values())))
  return types.Upload(
    index=jnp.arange(num) if index is None else jnp.asarray(index),
    shared=shared,
    num_examples=jnp.asarray(np.ones(num) if sizes is None else sizes, 'f4'),
    num_steps=jnp.asarray(np.ones(num) if steps is None else steps, 'i4'),
    finite=jnp.ones(num, bool),
    messages={n: jnp.asarray(x, jnp.float32) for n, x in messages.items()},
  )


def same_uploads(one, num, **fields):
  """`num` uploads of the same leaves."""
  shared = {n: jnp.stack([x] * num) for n, x in one.items()}
  return uploads(shared, **fields)


def _scores(outputs, batch):
  del batch
  return outputs.logits.sum(), {}


def algorithm(components, sizes=(1e4,) * 16, exact=True, objective=_scores):
  """Composes components over the linear network and plain SGD."""
  settings = Settings(
    model=LINEAR,
    objective=objective,
    optimizer=optimizers.sgd(0.0, False, 0.0),
    schedule=lambda round_: jnp.float32(0.1),
    train_transform=train_transform,
    test_transform=transform,
    outputs=types.Outputs(*[None] * 3),
    image_shape=(2, 1, 1, 3),
    num_steps=1,
    shared=compose.shared_leaves(components),
  )
  return compose.compose(
    components,
    settings,
    batch_stats_rule='average',
    exact=exact,
    sizes=sizes,
  )


def serve(
  components,
  server,
  *rounds,
  clients=None,
  public=None,
  first=0,
  exact=True,
):
  """Rounds of the server, each given its uploads.

  Args:
    components: of the method.
    server: variables before the first round.
    *rounds: uploads of each round.
    clients: N, by default as many as there are uploads; of one image each.
    public: stored images.
    first: number of the first round.
    exact: whether sums are in fixed point.

  Returns:
    (server state on the host, log of the last round).
  """
  made = algorithm(components, exact=exact)
  sizes = jnp.ones(clients or len(rounds[0].num_steps))
  if public is None:
    public = jnp.zeros((0, 1, 1, 3), jnp.uint8)
  seed = prng.data(0)
  state = made.init_server(server, sizes, public, seed)
  run, log = jax.jit(made.aggregate), {}
  for round_, sent in enumerate(rounds, start=first):
    drawn = jnp.arange(len(sent.num_steps))
    state, log = run(state, sent, drawn, round_, public, seed)
  return jax.device_get((state, log))


def rows_of_subsets(component, sent, server):
  """Weights of one group for every set of uploads that may be valid.

  Returns:
    (subsets bool `[R, K]`, weights `[R, K]` or a dict of them by leaf).
  """
  num = len(sent.num_steps)
  subsets = np.array([*itertools.product([False, True], repeat=num)][1:])
  previous = {n: x[None] for n, x in server.items()}

  def one(valid):
    members = valid[None]
    ctx = context(
      AggregationCtx,
      index=sent.index,
      valid=valid,
      uploaded=sent.shared,
      num_examples=sent.num_examples,
      num_steps=sent.num_steps,
      start=previous,
      members=members,
    )
    rule = component.aggregation
    if isinstance(rule, Gather):
      messages = sent.messages.get(component.name, ())
      rows = rule.weights(messages, ctx)
      return jax.tree.map(lambda row: row[0], rows)
    owner = component if rule else None
    made = fold_.make((component,), owner, 'average', Float32())
    made = made._replace(received={})
    own = dataclasses.replace(sent, finite=valid)
    folded = made.over(server, {}, own, jnp.arange(num))
    sums, uploads = made.read(folded.totals), folded.uploads
    mean = made.mean(previous, sums, {}, uploads, folded.raw, uploads.finite)
    return jax.tree.map(lambda row: row[0], mean.weights)

  return subsets, jax.device_get(jax.jit(jax.vmap(one))(subsets))


def equal_clients(components, **fields):
  """Three clients of different sizes that send the same leaves.

  Returns:
    (the leaves, the server's model of group 0 after them, log).
  """
  rng = np.random.default_rng(3)
  everything = {
    n: jnp.asarray(rng.standard_normal(x.shape), jnp.float32)
    for n, x in variables().items()
  }
  sent, _ = trees.split(everything, compose.shared_leaves(components))
  server, log = serve(
    components,
    variables(kernel=7.0, scores=7.0, mean=7.0),
    same_uploads(sent, 3, sizes=(1, 5, 2), **fields),
    public=pixels(np.eye(3) * 10),
  )
  group = log['groups'][0]
  return sent, {n: x[group] for n, x in server.shared.items()}, log


def task(**fields):
  """A task of one client, one step of no images unless told otherwise."""
  names = types.ClientTask.__dataclass_fields__
  numbers = dict.fromkeys(names, 0) | {'num_steps': 1, 'num_identities': 3}
  numbers['seed'] = prng.data(0)
  return types.ClientTask(
    **{n: jnp.asarray(x) for n, x in (numbers | fields).items()}
  )


def batch(rows, valid=None):
  """A batch of transformed images, label 0."""
  images = transform(pixels(rows))
  column = jnp.zeros(len(images), jnp.int32)
  valid = column == 0 if valid is None else jnp.asarray(valid)
  return types.Batch(images, column, column, column, valid)
