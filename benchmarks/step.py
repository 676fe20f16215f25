"""Speed of one training step of a network, and its compilation, on one device.

  python -m benchmarks.step [--batch=64] [--steps=20]
    [--arg='synthetic,data.height=64'] [--models='NAME:key=value;NAME']

A step is the gradient of cross-entropy and gradient descent. Several steps run
in one loop as in a client's update; networks run in turn. The seconds of the
compilation are those of the first loop less the median of the others. A
multiply-add counts as two FLOPs, and a backward pass as two forward passes.
"""

import time

import numpy as np
from absl import app, flags

from benchmarks import show

_MODELS = flags.DEFINE_string(
  'models', 'convnet', 'NAME[:key=value,...] of each, separated by `;`.'
)
_ARG = flags.DEFINE_string('arg', 'synthetic', 'Preset and changes of fedpav.')
_BATCH = flags.DEFINE_integer('batch', 64, 'Number of images in a step.')
_STEPS = flags.DEFINE_integer('steps', 20, 'Number of steps in a loop.')
_TURNS = flags.DEFINE_integer(
  'turns', 5, 'Loops of each, after one to compile.'
)

IDENTITIES = 32


def prepare(spec: str, arg: str, batch: int, steps: int):
  """Returns (function that runs a loop, multiply-adds per image)."""
  from fedreid_jax.config import recipes, validation
  from fedreid_jax.models import flops
  from fedreid_jax.training import build

  name, _, own = spec.partition(':')
  fields = [arg, f'model.name={name}', *filter(None, [own])]
  config = validation.validate(recipes.recipe('fedpav', ','.join(fields)))
  shape = config.data.height, config.data.width, 3
  model = build.network(config, IDENTITIES, shape)
  cost = flops.count(model, shape, classifier=True)
  return loop_of(model, (steps, batch, *shape), IDENTITIES), cost


def loop_of(model, shape: tuple[int, ...], identities: int):
  """Returns a function that runs a loop of steps.

  Args:
    model: the network.
    shape: `(S, B, H, W, ch)` of the images.
    identities: columns of its classifier.
  """
  import jax
  import jax.numpy as jnp

  from fedreid_jax.core import trees
  from fedreid_jax.losses import identity

  params, rest = trees.trainable(jax.jit(model.init)(jax.random.key(0)))
  labels = jnp.arange(shape[1]) % identities
  images = jax.random.normal(jax.random.key(1), shape)

  def loss(params, x):
    outputs, _ = model.apply({**params, **rest}, x, train=True)
    everyone = jnp.ones(len(labels), bool)
    return identity.cross_entropy(outputs.logits, labels, everyone)

  @jax.jit
  def loop(params, images):
    def step(params, x):
      slope = jax.grad(loss)(params, x)
      return jax.tree.map(lambda p, d: p - 1e-3 * d, params, slope), ()

    return jax.lax.scan(step, params, images)[0]

  return lambda: jax.block_until_ready(loop(params, images))


def main(argv: list[str]) -> None:
  """Prints images per second of each network."""
  del argv
  import jax

  jax.config.update('jax_num_cpu_devices', 1)
  batch, steps = _BATCH.value, _STEPS.value
  runs = {
    spec: prepare(spec, _ARG.value, batch, steps)
    for spec in _MODELS.value.split(';')
  }
  seconds: dict[str, list[float]] = {spec: [] for spec in runs}
  first: dict[str, float] = {}
  for turn in range(_TURNS.value + 1):
    for spec, (run, _) in runs.items():
      start = time.perf_counter()
      run()
      took = (time.perf_counter() - start) / steps
      if turn:
        seconds[spec].append(took)
      else:
        first[spec] = took
  rows = []
  for spec, (_, cost) in runs.items():
    took = float(np.median(seconds[spec]))
    rate = batch / took
    rows.append(
      (
        spec,
        f'{cost.multiply_adds / 1e6:.1f}',
        f'{steps * (first[spec] - took):.1f}',
        f'{1e3 * took:.1f}',
        f'{rate:.0f}',
        f'{6e-9 * cost.multiply_adds * rate:.0f}',
      )
    )
  columns = 'network', 'M mult-adds', 'compile s', 'ms', 'images/s', 'GFLOP/s'
  show.rows(f'a training step, {_ARG.value}, batch {batch}', columns, rows)


if __name__ == '__main__':
  app.run(main)
