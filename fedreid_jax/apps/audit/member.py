"""Audit of membership: whether a model was trained on images of a person.

The audit trains the configuration of a run several times, each time with a
random half of the persons of every client (`shadow`), and attacks each of these
models with the others. The attacker knows the recipe, has models that were
trained with and without each person, and images of the person:

  other images  on which no model was trained.
  same images   those on which a model with the person was trained: an upper
                bound.

The score of a person in a model is how compact the person's features are
(`shadow.compactness`). Each model is attacked with the scores in the others
(LiRA of Carlini et al., "Membership inference attacks from first principles",
S&P 2022, section 5): for person i, s_i is normal with mean mu_in,i over the
models with the person and mu_out,i over those without, and

  Lambda_i = log N(s_i; mu_in,i, v_in) - log N(s_i; mu_out,i, v_out).

In the positive control a small network memorises a few persons, without
augmentation, once for each random half of these persons, and the attacker has
the images of the training. The negative control asks for random halves other
than those of the training.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection, shadow
from fedreid_jax.apps.audit.detection import Detection
from fedreid_jax.apps.audit.shadow import CASES, Persons
from fedreid_jax.core import model_names
from fedreid_jax.method.component import Component
from fedreid_jax.models import convnet, reid
from fedreid_jax.training.loaded_run import LoadedRun
from fedreid_jax.training.simulation_api import Simulation

SUCCESS = 0.9  # area of the positive control
NEGATIVE = 'negative control: other halves'
SEEDS = 2**31 - 1
DRAWS = 1000  # of the bootstrap

# The networks of the positive control.
SIZE = 16, 8  # of the images
PERSONS = 24  # largest number
CHANNELS = (16, 32)
ROUNDS = 10
FIELDS = {
  'local.steps': 20,
  'local.batch': 32,
  'optim.lr': 0.05,
  'augment.pad': 0,
  'augment.flip': 0.0,
}

# Its expression matches no name.
NOTHING_SHARED = Component(
  'nothing_shared', shared=r'(?!)', properties=('independent',)
)

Scores = Float[np.ndarray, 'R P']
Included = Bool[np.ndarray, 'R P']
Sides = tuple[Float[np.ndarray, ' M'], Float[np.ndarray, ' N']]


class Audited(NamedTuple):
  """Results of the audit."""

  # Success by case, and of the negative control; empty if the positive control
  # has failed.
  found: dict[str, Detection]
  positive: Detection  # success of the positive control
  persons: int  # number of persons
  shadows: int  # number of models
  # Number of pairs of a person and a model without a result, because all other
  # models have the person or none has.
  left_out: int
  failed: tuple[str, ...]  # controls that failed


def audit(
  run: LoadedRun,
  folder: Path,
  shadows: int,
  seed: int = 0,
  tell: Callable[[str], None] = print,
) -> Audited:
  """Trains shadow models of a run and attacks each with the others.

  An audit that was stopped continues with the models in its folder, which the
  caller deletes.

  Raises:
    ConfigError: if shadow models would say nothing or clients share persons.
    DataError: if too few persons have enough images.
  """
  shadow.check(run)
  persons = shadow.of_clients(
    run.federation.clients, run.config.data.client_split
  )
  positive = attack_memory(persons, shadows, seed)
  # The control takes seconds and each shadow model as long as the run, so no
  # model is trained after a control that failed.
  if not positive.auc >= SUCCESS:  # or no number
    failed = f'persons learnt by heart have an AUC of {positive.auc:.3f}'
    number = sum(one.number for one in persons)
    return Audited({}, positive, number, 0, 0, (f'{failed}, below {SUCCESS}',))
  included: list[np.ndarray] = []
  scores: dict[str, list[np.ndarray]] = {case: [] for case in CASES}
  for model in range(shadows):
    # The halves follow from the number of the model, so that an audit that is
    # started again gets the halves of the models that it finds.
    rng = np.random.default_rng([seed, model])
    halves = [shadow.half(one.number, rng) for one in persons]
    by_case = shadow.scores(
      run, persons, halves, folder / str(model), int(rng.integers(SEEDS))
    )
    included.append(np.concatenate(halves))
    for case, values in by_case.items():
      scores[case].append(values)
    tell(f'model {model + 1} of {shadows}')
  # No model has this number, so the permutations are independent of the halves.
  rng = np.random.default_rng([seed, shadows])
  return _judged(
    {case: np.asarray(rows) for case, rows in scores.items()},
    np.asarray(included),
    np.asarray([rng.permutation(row) for row in included]),
    positive,
    seed,
  )


def _judged(
  scores: dict[str, np.ndarray],
  included: np.ndarray,
  others: np.ndarray,
  positive: Detection,
  seed: int,
) -> Audited:
  found = {
    case: measure(log_ratios(values, included), included, seed)
    for case, values in scores.items()
  }
  first = found[CASES[0]]
  ratios = log_ratios(scores[CASES[0]], others)
  found[NEGATIVE] = measure(ratios, others, seed)
  failed: tuple[str, ...] = ()
  if not at_chance(ratios, others, seed):
    failed = (
      f'other halves are found with an AUC of {found[NEGATIVE].auc:.3f}',
    )
  return Audited(
    found,
    positive,
    included.shape[1],
    len(included),
    included.size - first.members - first.non_members,
    failed,
  )


def attack_memory(
  persons: Sequence[Persons], networks: int, seed: int = 0
) -> Detection:
  """The success of the positive control, on the client with most persons."""
  most = max(persons, key=lambda one: one.number)
  few = _small(most.some(PERSONS))
  rng = np.random.default_rng(seed)
  halves = [shadow.half(few.number, rng) for _ in range(networks)]
  clients = [
    few.members(half)._replace(name=f'network {k}')
    for k, half in enumerate(halves)
  ]
  # The networks are clients that share nothing, so that they train in one
  # compiled program.
  simulation = Simulation(
    lambda identities: reid.ReIDNet(convnet.ConvNet(CHANNELS), identities),
    [NOTHING_SHARED],
    clients,
    fields=FIELDS | {'seed': seed, 'rounds': ROUNDS},
  )
  state = simulation.init(jax.random.key(seed))
  for _ in range(ROUNDS):
    state, _ = simulation.round(state)
  models = simulation.models(state)
  embed = jax.jit(simulation.embed)

  def features(name: str, images: np.ndarray, _: np.ndarray) -> np.ndarray:
    pixels = (jnp.asarray(images, jnp.float32) / 255 - 0.5) / 0.25
    return np.asarray(embed(models[model_names.of_client(name)], pixels))

  values = np.asarray(
    [
      few.scores(functools.partial(features, one.name), CASES[1])
      for one in clients
    ]
  )
  included = np.asarray(halves)
  return measure(log_ratios(values, included), included, seed)


def _small(persons: Persons) -> Persons:
  client = persons.client
  images = client.images()
  shape = (len(images), *SIZE, images.shape[3])
  resized = jax.image.resize(jnp.asarray(images, jnp.float32), shape, 'linear')
  small = np.asarray(jnp.clip(jnp.round(resized), 0, 255), np.uint8)
  return persons._replace(client=client._replace(images=lambda: small))


def log_ratios(scores: Scores, included: Included) -> Scores:
  """Lambda by person and model; NaN if no other, or all, have the person."""
  ratios = np.full(scores.shape, np.nan)
  for run in range(len(scores)):
    # The attacked model is left out, so its score does not describe itself.
    others = np.delete(scores, run, axis=0)
    member = np.delete(included, run, axis=0)
    with np.errstate(invalid='ignore'):
      ratios[run] = _log_normal(scores[run], others, member) - _log_normal(
        scores[run], others, ~member
      )
  return ratios


def _log_normal(
  score: Float[np.ndarray, ' P'], scores: Scores, which: Included
) -> Float[np.ndarray, ' P']:
  """The log density up to a constant, `[P]`, by the scores in `which`."""
  number = which.sum(0)
  mean = np.where(which, scores, 0).sum(0) / np.where(number, number, np.nan)
  # A variance of each person would be too uncertain: the paper advises a common
  # one for few models. A person costs a degree of freedom by its mean.
  gaps = np.where(which, scores - mean, 0)[:, number > 0]
  variance = (gaps**2).sum() / max(int((number[number > 0] - 1).sum()), 1)
  # The inverted comparison is also true of NaN.
  if not variance > 0:
    return np.full(len(score), np.nan)
  return -((score - mean) ** 2) / (2 * variance) - np.log(variance) / 2


def measure(ratios: Scores, included: Included, seed: int = 0) -> Detection:
  """How well the ratios tell members from non-members; NaN are left out.

  The intervals are percentiles of a bootstrap over persons. The interval of the
  TPR is None if a sample has fewer than 1000 non-members.

  Raises:
    DataError: if no ratio is a number.
  """
  found = detection.measure(*_sides(ratios, included))
  areas, rates = [], []
  for members, others in _drawn(ratios, included, seed):
    areas.append(detection.auc(members, others))
    hits = detection.hits(members, others)
    if hits is not None:
      rates.append(hits / len(members))
  whole = found.tpr is not None and len(rates) == len(areas)
  return found._replace(
    auc_interval=_percentiles(areas, detection.LEVEL),
    tpr_interval=_percentiles(rates, detection.LEVEL) if whole else None,
  )


def at_chance(ratios: Scores, included: Included, seed: int = 0) -> bool:
  """Whether the 99 % interval of the area, see `measure`, has 0.5."""
  sides = _drawn(ratios, included, seed)
  areas = [detection.auc(members, others) for members, others in sides]
  low, high = _percentiles(areas, detection.CONTROL)
  return low <= detection.CHANCE <= high


def _sides(ratios: Scores, included: Included) -> Sides:
  real = ~np.isnan(ratios)
  members, others = ratios[included & real], ratios[~included & real]
  if min(len(members), len(others)) < 2:
    raise errors.DataError(
      'the scores of the persons cannot be compared',
      'the audit of membership',
      'train with more models or more persons',
    )
  return members, others


def _drawn(ratios: Scores, included: Included, seed: int) -> Iterator[Sides]:
  # Ratios of one person in several models are not independent, so persons are
  # drawn with all their models.
  rng, size = np.random.default_rng(seed), ratios.shape[1]
  for _ in range(DRAWS):
    persons = rng.integers(size, size=size)
    yield _sides(ratios[:, persons], included[:, persons])


def _percentiles(values: list[float], level: float) -> tuple[float, float]:
  low, high = np.percentile(values, (50 * (1 - level), 50 * (1 + level)))
  return float(low), float(high)
