"""Search for the noise of a guarantee among the draws of many seeds.

Noise that is generated from a guessable number can be computed and subtracted.
The attacker has the initial and the final model of a run, its configuration and
all data, and does not know whether one person is in them, as the definition of
differential privacy grants. For each guess g of the secret, with N_g the noise
of the last round at n coordinates of the shared parameters and D the change of
these coordinates in the whole run, the score is

  sqrt(n) <N_g, D> / (|N_g| |D|),

which is a standard normal variable for a wrong guess. N_g is what the component
says (`method.guarantee.Draws`): in DP-FedAvg the noise of the server, and in
DP-SGD the sum of the noise of all clients and steps.

The guesses are the secrets that follow from seeds. The positive control scores
the secret of the run, and the negative control scores 256 random secrets.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedreid_jax import errors
from fedreid_jax.apps.audit import claimed
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import prng, secret, trees
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.secret import Secret
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method.guarantee import Draws
from fedreid_jax.round import compose
from fedreid_jax.training import build, named_models
from fedreid_jax.training.files import run_files, run_secret
from fedreid_jax.training.loaded_run import LoadedRun

FALSE = 1e-6  # probability that a search without the secret finds one
BATCH = 64  # guesses in one call of the compiled program
MOST = 65536  # coordinates
SEEDS = 2**31


class Noise(NamedTuple):
  """The noise of one round at the observed coordinates."""

  uids: tuple[int, ...]  # of the clients that draw noise, 0 for the server
  # `(seeds uint32 [U, 10], round) -> sum of their draws [n]`.
  of: Callable[[Array, Array | int], Array]

  def seeds(self, secret: Secret, round_: int) -> np.ndarray:
    """The seeds of the draws of a round, uint32 `[U, 10]`."""
    public = prng.data(0)  # no draw of noise depends on it
    given = [prng.of_round(public, secret, round_, uid) for uid in self.uids]
    return np.stack(given)


class Audited(NamedTuple):
  """Results of the audit."""

  origin: str  # `privacy.secret` of the run
  guesses: int  # number of seeds that were tried
  coordinates: int  # number of coordinates of a score, n
  threshold: float  # score above which a guess is right
  best: int  # seed with the largest score
  score: float  # score of this seed
  # Share of the variance of D that the noise of all rounds from this seed
  # explains.
  explained: float
  all_seeds_s: float  # seconds that all 2^31 seeds would take at this rate
  positive: float  # score of the secret of the run
  negative: float  # largest score of random secrets
  failed: tuple[str, ...]  # controls that failed
  refuted: str  # how the guarantee is refuted, '' if it is not

  @property
  def recovered(self) -> bool:
    """Whether a seed explains the noise of the run."""
    return self.score > self.threshold


def audit(run: LoadedRun, workdir: Path, guesses: int) -> Audited:
  """Tries the secrets of the first seeds against the released model of a run.

  The seed of the run is tried as well, as it may be beyond those.

  Raises:
    ConfigError: for a run without a guarantee, whose noise is discrete or on no
      shared parameter, or that has no round or began from another run.
    IntegrityError: for a run whose secret is lost or damaged.
  """
  config, rounds = run.config, run.step
  if not rounds or config.start_from:
    raise errors.ConfigError(
      'the change of the model is not that of a run from its start',
      'start_from' if rounds else 'checkpoint',
      'give a run with rounds and an initial model of its own',
    )
  # The attacker knows configuration and data up to one person, so the digest of
  # both hides at most one bit from the attacker.
  digest = run_secret.digest(config, run.federation)
  noise, change = _attacked(run)
  kept = _kept(config, workdir)
  score_all = scorer(noise, change, rounds - 1)

  def scores(roots: Sequence[bytes]) -> np.ndarray:
    return score_all([Secret(root, digest) for root in roots])

  # The seed of the run may lie beyond the range of guesses.
  seeds = sorted({*range(guesses), config.seed})
  # The first call compiles, which the rate of guesses should not include.
  scores([secret.draw()])
  start = time.perf_counter()
  found = scores([secret.of_seed(seed) for seed in seeds])
  seconds = time.perf_counter() - start
  best, score = seeds[int(found.argmax())], float(found.max())
  positive = float(scores([kept])[0])
  negative = float(scores([secret.draw() for _ in range(256)]).max())
  # The tail of a standard normal is at most exp(-t^2 / 2), so the union bound
  # over all guesses lets one wrong search in a million pass.
  threshold = math.sqrt(2 * math.log(len(seeds) / FALSE))
  # A run with privacy.secret=seed makes no promise against guesses of its seed.
  origin, refuted = config.privacy.secret, ''
  if score > threshold and origin == 'system':
    refuted = f'the noise follows from the seed {best}'
  right = Secret(secret.of_seed(best), digest)
  return Audited(
    origin,
    len(seeds),
    len(change),
    threshold,
    best,
    score,
    _explained(noise, right, rounds, change),
    SEEDS * seconds / len(seeds),
    positive,
    negative,
    _failed(positive, negative, threshold),
    refuted,
  )


def _kept(config: Config, workdir: Path) -> bytes:
  # The attacked run has this secret; a new one would say nothing about it.
  path = workdir / run_files.SECRET
  if config.privacy.secret == 'system' and not path.exists():
    raise errors.IntegrityError(
      'the secret is missing', str(path), 'restore it from a copy'
    )
  return run_secret.root(config, workdir, restart=False)


def _failed(
  positive: float, negative: float, threshold: float
) -> tuple[str, ...]:
  failed: list[str] = []
  # Scores that are no numbers fail as well.
  if not positive > threshold:
    failed.append(
      f'the secret of the run scores {positive:.1f}, not above {threshold:.1f}'
    )
  if not negative <= threshold:
    failed.append(f'a random secret scores {negative:.1f}')
  return tuple(failed)


def _attacked(run: LoadedRun) -> tuple[Noise, Float[np.ndarray, ' n']]:
  config = run.config
  # The noise on sums of integers is discrete and comes from another generator.
  if any(component.summation for component in build.load_components(config)):
    raise errors.ConfigError(
      'the noise on sums of integers is not attacked',
      '--attack',
      'give a run without secure aggregation',
    )
  found = claimed.of_run(config, run.federation)
  # The run did not keep its initial model, which follows from the
  # configuration and the pretrained weights.
  first = named_models.network(config, run.federation, run.variables).variables
  first, _ = build.pretrained(config, first)
  change = {n: run.variables[n] - first[n] for n in first}
  shared, _ = trees.split(change, compose.shared_leaves(found.components))
  at_server = found.draws.hook == 'server.update'
  params, _ = trees.trainable(shared if at_server else change)
  observed = _observed(found.draws, params, shared)
  seen = np.concatenate([shared[n].ravel()[:k] for n, k in observed.items()])
  # Parameters without an observed coordinate keep their places among others.
  sizes = {name: observed.get(name, 0) for name in params}
  draw = functools.partial(_drawn, found.draws, sizes, tuple(observed))
  if at_server:
    return _of_server(found.owner, draw), seen
  uids = [prng.client_uid(client.name) for client in run.federation.clients]
  return _of_steps(found.owner, draw, uids, config.local.steps), seen


def _observed(draws: Draws, params: Flat, shared: Flat) -> dict[str, int]:
  """Returns the number of observed coordinates of each array with noise."""
  noisy = jax.eval_shape(draws.noise, jax.random.key(0), params)
  observed: dict[str, int] = {}
  left = MOST
  for name in sorted(noisy):
    # No attacker sees arrays that clients do not share.
    if name in shared and left:
      observed[name] = min(shared[name].size, left)
      left -= observed[name]
  if not observed:
    raise errors.ConfigError(
      'no parameter with noise is shared, so that an attacker sees none',
      '--attack',
      'give a run that shares the parameters that it trains',
    )
  return observed


def _drawn(
  draws: Draws, sizes: Mapping[str, int], names: Sequence[str], key: Array
) -> Float[Array, ' n']:
  """Draws the noise at the observed coordinates of arrays."""
  noise = draws.noise(key, {n: jnp.zeros(size) for n, size in sizes.items()})
  return jnp.concatenate([noise[name] for name in names])


def _of_server(name: str, draw: Callable[[Array], Array]) -> Noise:
  def of(seeds: Array, round_: Array | int) -> Array:
    key = prng.key(seeds[0], Stream.SERVER, round_)
    return draw(jax.random.fold_in(key, prng.component_uid(name)))

  return Noise((0,), of)


def _of_steps(
  name: str,
  draw: Callable[[Array], Array],
  uids: Sequence[int],
  steps: int,
) -> Noise:
  def of(seeds: Array, round_: Array | int) -> Array:
    def of_step(i: Array) -> Array:
      uid = jnp.asarray(uids, jnp.uint32)[i // steps]
      key = prng.client(seeds[i // steps], Stream.TERM, round_, uid)
      key = jax.random.fold_in(key, prng.component_uid(name))
      return draw(jax.random.fold_in(key, i % steps))

    def step(i: Array, total: Array) -> Array:
      # A step goes against the gradient.
      return total - of_step(i)

    zeros = jnp.zeros(jax.eval_shape(of_step, jnp.int32(0)).shape)
    return jax.lax.fori_loop(0, len(uids) * steps, step, zeros)

  return Noise(tuple(uids), of)


def scorer(
  noise: Noise, change: Float[np.ndarray, ' n'], round_: int
) -> Callable[[Sequence[Secret]], Float[np.ndarray, ' guesses']]:
  """A function of guesses that returns the score of each."""
  direction = jnp.asarray(change / np.linalg.norm(change))

  @jax.jit
  def score(seeds: Array) -> Array:
    drawn = jax.vmap(noise.of, (0, None))(seeds, round_)
    norms = jnp.linalg.norm(drawn, axis=1)
    return math.sqrt(len(change)) * (drawn @ direction) / norms

  def scores(guessed: Sequence[Secret]) -> np.ndarray:
    found: list[np.ndarray] = []
    for i in range(0, len(guessed), BATCH):
      part = guessed[i : i + BATCH]
      seeds = np.stack([noise.seeds(one, round_) for one in part])
      # The last batch is padded so that all batches run one compiled program.
      missing = [(0, BATCH - len(part)), (0, 0), (0, 0)]
      padded = np.pad(seeds, missing, 'edge')
      found.append(np.asarray(score(padded))[: len(part)])
    return np.concatenate(found)

  return scores


def _explained(
  noise: Noise, secret: Secret, rounds: int, change: np.ndarray
) -> float:
  """Share of the variance that the noise of all rounds explains."""
  # Sums of many rounds are kept in float64, as float32 loses small draws.
  of = jax.jit(noise.of)
  total = sum(
    np.asarray(of(noise.seeds(secret, r), r), np.float64) for r in range(rounds)
  )
  return float(np.corrcoef(total, change)[0, 1] ** 2)
