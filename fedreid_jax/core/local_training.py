"""The local round of one client: the only training loop of the package.

Pure functions over ONE client, with no leading axis anywhere: `begin` opens the
round, `train` takes the steps whose images are in the table it is given,
`measure` re-estimates the moments of batch normalisation of the trained model,
`survey` folds over the client's images with them, `end` closes the round. A
client whose images all fit on the device runs them in one program; otherwise
`train`, `measure` and `survey` are called once a segment, with the same
results.

The loops have a dynamic number of steps. Run one client after another they
cost each client its own steps; vmapped, JAX selects on the whole carry, so a
client that is done (or padding, with no steps at all) does not move.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax.core import batch_stats, component, param_filter, prng, types
from fedreid_jax.core.optimizers import Optimizer
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat, Metrics, Tree


class Settings(NamedTuple):
  """What the local loop is made of.

  Attributes:
    model: the network.
    objective: `(Outputs, Batch) -> (loss, metrics)`.
    optimizer: pure functions over the trainable leaves.
    schedule: `(round with fraction) -> lr`.
    train_view: `(key, uint8 [B, H, W, ch], modalities) -> float32 images`.
    test_view: `(uint8 [B, H, W, ch]) -> float32 images`.
    outputs: shapes of what the model says about a batch.
    image_shape: `(B, H, W, ch)` of a batch.
    num_steps: of the longest round.
    seed: typed PRNG key of the run.
    shared: regular expression of the leaves that travel.
    persistent: keep the optimiser state from round to round.
    schedule_per_step: let the schedule move within the round.
    masked: some batches have padded rows.
    data_pass_batch: images of one step of a pass over all images.
    accumulate: add up the gradients of a round and step once, at its end.
  """

  model: types.Model
  objective: Callable[..., tuple[Array, Metrics]]
  optimizer: Optimizer
  schedule: Callable[[Array], Array]
  train_view: Callable[..., Array]
  test_view: Callable[[Array], Array]
  outputs: types.Outputs
  image_shape: tuple[int, int, int, int]
  num_steps: int
  seed: Array
  shared: str
  persistent: bool = False
  schedule_per_step: bool = False
  masked: bool = True
  data_pass_batch: int = 64
  accumulate: bool = False


@struct.dataclass
class Carry:
  """One client in the middle of its round.

  `moments` are those of the trained model on the client's images when a term
  surveys them; `first` is the first batch, not augmented, when a term looks at
  it in the end; `sums` (gradients so far, images they are of) when they are
  accumulated.
  """

  params: Flat
  buffers: Flat
  opt_state: Tree
  states: dict[str, Tree]
  moments: batch_stats.Layers
  surveyed: dict[str, Tree]
  first: Tree
  sums: Tree


class Program(NamedTuple):
  """The local round as pure functions.

  Attributes:
    begin: `(Broadcast, ClientState, Work) -> Carry`.
    train: `(Broadcast, Table, Carry, Work) -> (Carry, sums of metrics)`.
    moments: `(variables) -> moments` of no images, by layer.
    measure: `(Table, variables, moments, Work, augment=False) -> moments` with
      those of the images in the table, augmented as in training or not.
    survey: `(Table, Carry, Work) -> Carry`, once all images are measured.
    end: `(Broadcast, ClientState, Carry, Work, trained=True) -> (Upload,
      ClientState)`; before round 0 nothing was trained, and only terms that
      prepare have their say.
    surveys: whether any component asks for a survey.
  """

  begin: Callable[..., Carry]
  train: Callable[..., tuple[Carry, Metrics]]
  moments: Callable[[Flat], batch_stats.Layers]
  measure: Callable[..., batch_stats.Layers]
  survey: Callable[..., Carry]
  end: Callable[..., tuple[types.Upload, types.ClientState]]
  surveys: bool


def make(
  settings: Settings, components: tuple[component.Component, ...]
) -> Program:
  """Builds the local round of a method from its components."""
  terms = {c.name: c.term for c in components if c.term}
  channels = [(c.name, c.channel) for c in components if c.channel]
  folds = {n: t.survey for n, t in terms.items() if t.survey}
  looks_back = any(term.first_batch for term in terms.values())
  one_step = _make_step(settings, terms)

  def key(stream, name, broadcast, work):
    base = prng.client(settings.seed, stream, broadcast.round, work.uid)
    return jax.random.fold_in(base, prng.component_uid(name))

  def receive(broadcast, work):
    for name, channel in channels:
      if channel.down:
        down_key = key(Stream.DOWN, name, broadcast, work)
        broadcast = channel.down(broadcast, down_key)
    return broadcast

  def begin(broadcast, state, work):
    broadcast = receive(broadcast, work)
    variables = {**broadcast.shared, **state.personal}
    params, buffers = param_filter.trainable(variables)
    opt_state = state.opt_state
    if not settings.persistent:
      opt_state = settings.optimizer.init(params)
    ctx = component.OpenCtx(
      broadcast,
      variables,
      settings.optimizer,
      settings.num_steps * settings.image_shape[0],
    )
    states = {
      name: term.open(state.slots[name], ctx) for name, term in terms.items()
    }
    surveyed = {
      name: fold.init(settings.outputs) for name, fold in folds.items()
    }
    first: Tree = ()
    if looks_back:
      column = jnp.zeros(settings.image_shape[0], jnp.int32)
      images = jnp.zeros(settings.image_shape, jnp.uint8)
      first = types.Batch(images, column, column, column, column > 0)
    sums: Tree = ()
    if settings.accumulate:
      sums = jax.tree.map(jnp.zeros_like, params), jnp.float32(0.0)
    layers = moments(variables) if folds else {}
    return Carry(
      params, buffers, opt_state, states, layers, surveyed, first, sums
    )

  def train(broadcast, table, carry, work):
    step = functools.partial(one_step, receive(broadcast, work), table, work)
    shapes = jax.eval_shape(step, carry, jnp.int32(0))[1]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def body(i, loop):
      carry, sums = loop
      carry, metrics = step(carry, i)
      return carry, jax.tree.map(jnp.add, sums, metrics)

    if looks_back:
      here = _gather(table, work.rows[0], work.valid[0], lambda images: images)
      first = jax.tree.map(
        lambda new, old: jnp.where(work.first_step == 0, new, old),
        here,
        carry.first,
      )
      carry = carry.replace(first=first)
    left = work.num_steps - work.first_step
    num_steps = jnp.clip(left, 0, work.rows.shape[0])
    return jax.lax.fori_loop(0, num_steps, body, (carry, zeros))

  def over_images(table, work, body, start, augment=False):
    """Folds `(value, batch) -> value` over the images of a pass."""
    base = prng.client(settings.seed, Stream.PASS, 0, work.uid)

    def one(i, value):
      # With the barrier no pass looks constant to XLA, which would hoist one of
      # a single batch out of the loop and add its images in another order.
      rows, valid, _ = jax.lax.optimization_barrier(
        (work.pass_rows[i], work.pass_valid[i], i)
      )
      view = settings.test_view
      if augment:
        view = functools.partial(
          settings.train_view,
          jax.random.fold_in(base, work.first_step + i),
          modalities=table.modalities[rows],
        )
      return body(value, _gather(table, rows, valid, view))

    num = work.pass_valid.any(axis=1).sum(dtype=jnp.int32)
    return jax.lax.fori_loop(0, num, one, start)

  def measured(variables, batch, num_identities=None):
    return settings.model.measure(
      variables,
      batch.images,
      mask=batch.valid,
      num_identities=num_identities,
      modalities=batch.modalities,
    )

  def moments(variables):
    column = jnp.zeros(settings.data_pass_batch, jnp.int32)
    images = jnp.zeros((len(column), *settings.image_shape[1:]))
    batch = types.Batch(images, column, column, column, column == 0)
    return batch_stats.zeros(lambda: measured(variables, batch))

  def measure(table, variables, layers, work, augment=False):
    return over_images(
      table,
      work,
      lambda layers, batch: batch_stats.merge(
        layers, measured(variables, batch, work.num_identities)[1]
      ),
      layers,
      augment,
    )

  def survey(table, carry, work):
    variables = batch_stats.install(
      {**carry.params, **carry.buffers}, carry.moments
    )

    def body(surveyed, batch):
      outputs, _ = settings.model.apply(
        variables,
        batch.images,
        train=False,
        num_identities=work.num_identities,
        modalities=batch.modalities,
      )
      return {
        n: f.update(surveyed[n], outputs, batch) for n, f in folds.items()
      }

    return carry.replace(
      surveyed=over_images(table, work, body, carry.surveyed)
    )

  def end(broadcast, state, carry, work, trained=True):
    received = receive(broadcast, work)
    variables = {**carry.params, **carry.buffers}
    start = {**received.shared, **state.personal}
    slots, extras = dict(state.slots), {}
    for name, term in terms.items():
      if not (trained or term.prepare):
        continue
      ctx = component.FinishCtx(
        broadcast=received,
        work=work,
        start=start,
        variables=variables,
        surveyed=carry.surveyed.get(name),
        first_batch=_viewed(carry.first, settings.test_view)
        if term.first_batch
        else None,
        model=settings.model,
        optimizer=settings.optimizer,
        lr=settings.schedule(broadcast.round),
        test_view=settings.test_view,
        key=key(Stream.TERM, name, broadcast, work),
      )
      slots[name], extras[name] = term.finish(carry.states[name], ctx)
    shared, personal = param_filter.split(variables, settings.shared)
    opt_state = carry.opt_state if settings.persistent else ()
    stays = types.ClientState(personal, slots, opt_state)
    healthy = jnp.bool_(True)
    for leaf in jax.tree.leaves(stays):
      healthy &= jnp.isfinite(leaf).all()
    upload = types.Upload(
      work.index, shared, work.num_examples, work.num_steps, healthy, extras
    )
    for name, channel in channels:
      if channel.up:
        up_key = key(Stream.UP, name, broadcast, work)
        upload = channel.up(upload, received, up_key)
    return upload, stays

  return Program(begin, train, moments, measure, survey, end, bool(folds))


def _gather(table, rows, valid, view) -> types.Batch:
  return types.Batch(
    images=view(table.images[rows]),
    labels=table.labels[rows],
    cameras=table.cameras[rows],
    modalities=table.modalities[rows],
    valid=valid,
  )


def _viewed(batch: types.Batch, view) -> types.Batch:
  return batch._replace(images=view(batch.images))


def _make_step(settings: Settings, terms: dict[str, component.LocalTerm]):
  """Returns `(broadcast, table, work, carry, i) -> (carry, metrics)`."""
  model = settings.model

  def key(stream, ctx, name=None):
    base = prng.client(settings.seed, stream, ctx.broadcast.round, ctx.work.uid)
    return jax.random.fold_in(base, ctx.step if name is None else name)

  def context(ctx: component.StepCtx, name, variables, outputs):
    """Narrows the context to one term."""
    uid = prng.component_uid(name)
    round_key = key(Stream.TERM, ctx, uid)
    identities = ctx.work.num_identities
    return ctx._replace(
      outputs=outputs,
      classify=lambda x: model.classify(variables, x, identities),
      key=jax.random.fold_in(round_key, ctx.step),
      round_key=round_key,
      note=None if ctx.note is None else ctx.note.get(name),
    )

  def loss(params, carry, ctx):
    variables = {**params, **carry.buffers}
    outputs, buffers = model.apply(
      variables,
      ctx.batch.images,
      train=True,
      key=key(Stream.DROPOUT, ctx),
      mask=ctx.batch.valid if settings.masked else None,
      num_identities=ctx.work.num_identities,
      modalities=ctx.batch.modalities,
      labels=ctx.batch.labels,
    )
    total, metrics = settings.objective(outputs, ctx.batch)
    for name, term in terms.items():
      if term.loss:
        own = context(ctx, name, variables, outputs)
        extra, more = term.loss(variables, carry.states[name], own)
        total = total + extra
        metrics |= {f'{name}_{k}': v for k, v in more.items()}
    return total, (outputs, buffers, metrics | {'loss': total})

  def one_step(broadcast, table, work, carry, i):
    step = work.first_step + i
    rows = work.rows[i]
    within = (
      step / jnp.maximum(work.num_steps, 1)
      if settings.schedule_per_step
      else 0.0
    )
    ctx = component.StepCtx(
      broadcast=broadcast,
      work=work,
      batch=None,  # pyright: ignore[reportArgumentType] (set below)
      outputs=None,  # pyright: ignore[reportArgumentType] (set in loss)
      model=model,
      objective=settings.objective,
      view=lambda view_key: settings.train_view(
        view_key, table.images[rows], table.modalities[rows]
      ),
      step=step,
      lr=settings.schedule(broadcast.round + within),
      classify=None,  # pyright: ignore[reportArgumentType] (set for a term)
      optimizer=settings.optimizer,
      key=None,  # pyright: ignore[reportArgumentType] (set for a term)
      round_key=None,  # pyright: ignore[reportArgumentType] (set for a term)
      note=None,
    )
    augment = key(Stream.AUGMENT, ctx)
    batch = _gather(
      table,
      rows,
      work.valid[i],
      lambda images: settings.train_view(
        augment, images, table.modalities[rows]
      ),
    )
    states, notes = dict(carry.states), {}
    for name, term in terms.items():
      if term.before:
        variables = {**carry.params, **carry.buffers}
        own = context(ctx._replace(batch=batch), name, variables, None)
        states[name], notes[name] = term.before(states[name], own)
    carry = carry.replace(states=states)
    ctx = ctx._replace(batch=batch, note=notes)
    gradient = settings.optimizer.grad(loss)
    grads, (outputs, buffers, metrics) = gradient(carry.params, carry, ctx)
    carry = _update(settings, carry, grads, ctx)
    states = dict(carry.states)
    for name, term in terms.items():
      if term.observe:
        variables = {**carry.params, **buffers}
        own = context(ctx, name, variables, outputs)
        states[name] = term.observe(states[name], own)
    return carry.replace(buffers=buffers, states=states), metrics

  return one_step


def _update(settings: Settings, carry, grads: Flat, ctx: component.StepCtx):
  """Takes a step of the optimiser, or adds up gradients until the last."""

  def move(grads):
    params, opt_state = settings.optimizer.update(
      grads, carry.opt_state, carry.params, ctx.lr
    )
    return carry.replace(params=params, opt_state=opt_state)

  if not settings.accumulate:
    return move(grads)
  num = ctx.batch.valid.sum().astype(jnp.float32)
  total, images = carry.sums
  total = jax.tree.map(lambda old, new: old + num * new, total, grads)
  images = images + num
  mean = jax.tree.map(lambda sum_: sum_ / jnp.maximum(images, 1.0), total)
  last = ctx.step == ctx.work.num_steps - 1
  moved = jax.tree.map(
    lambda new, old: jnp.where(last, new, old), move(mean), carry
  )
  return moved.replace(sums=(total, images))
