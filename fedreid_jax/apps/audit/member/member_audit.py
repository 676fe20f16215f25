"""Audit of membership: whether a model was trained on images of a person.

The audit trains the configuration of a run several times, each time with a
random half of the persons of every client (`shadow_persons`), and attacks each
of these models with the others (`membership`). The attacker knows the recipe,
has models that were trained with and without each person, and images of the
person:

  other images  on which no model was trained.
  same images   those on which a model with the person was trained: an upper
                bound.

In the positive control a small network memorises a few persons, and the
attacker has the images of the training (`attack`). The negative control asks
for random halves other than those of the training.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.algorithms import standalone
from fedreid_jax.apps.audit.detection import Detection
from fedreid_jax.apps.audit.member import (
  membership,
  shadow_models,
  shadow_persons,
)
from fedreid_jax.apps.audit.member.shadow_persons import Persons
from fedreid_jax.models import convnet, reid
from fedreid_jax.training.loaded_run import LoadedRun
from fedreid_jax.training.simulation import Simulation

# The positive control of the audit of membership.
#
# A small network memorises a few persons of the run, without augmentation, once
# for each random half of these persons, and the attacker has the images of the
# training.

SIZE = 32, 16  # of the images
PERSONS = 24  # largest number
CHANNELS = (16, 32, 64)
ROUNDS = 15
FIELDS = {
  'local.steps': 20,
  'local.batch': 32,
  'optim.lr': 0.05,
  'augment.pad': 0,
  'augment.flip': 0.0,
}


def attack(
  persons: Sequence[Persons], networks: int, seed: int = 0
) -> Detection:
  """Returns the success of the positive control.

  Args:
    persons: of the run; those of the client with the most are used.
    networks: number of networks.
    seed: of halves, networks and batches.
  """
  most = max(persons, key=lambda one: one.number)
  few = _small(most.some(PERSONS))
  rng = np.random.default_rng(seed)
  halves = [shadow_persons.half(few.number, rng) for _ in range(networks)]
  clients = [
    few.members(half)._replace(name=f'network {k}')
    for k, half in enumerate(halves)
  ]
  # The networks are clients that share nothing, so that they train in one
  # compiled program.
  simulation = Simulation(
    lambda identities: reid.ReIDNet(convnet.ConvNet(CHANNELS), identities),
    [standalone.make()],
    clients,
    fields=FIELDS | {'seed': seed, 'rounds': ROUNDS},
  )
  state = simulation.init(jax.random.key(seed))
  for _ in range(ROUNDS):
    state, _ = simulation.round(state)
  models = simulation.models(state)
  embed = jax.jit(simulation.embed)

  def scores(name: str):
    def features(images: np.ndarray, _: np.ndarray):
      pixels = (jnp.asarray(images, jnp.float32) / 255 - 0.5) / 0.25
      return np.asarray(embed(models[name], pixels))

    return few.scores(features, shadow_persons.CASES[1])

  found = np.asarray([scores(f'client:{one.name}') for one in clients])
  included = np.asarray(halves)
  ratios = membership.log_ratios(found, included)
  return membership.measure(ratios, included, seed)


def _small(persons: Persons) -> Persons:
  """Returns the persons with images of `SIZE`."""
  client = persons.client
  images = client.images()
  shape = (len(images), *SIZE, images.shape[3])
  found = jax.image.resize(jnp.asarray(images, jnp.float32), shape, 'linear')
  small = np.asarray(jnp.clip(jnp.round(found), 0, 255), np.uint8)
  return persons._replace(client=client._replace(images=lambda: small))


SUCCESS = 0.9  # area of the positive control
NEGATIVE = 'negative control: other halves'
SEEDS = 2**31 - 1
Tell = Callable[[str], None]


class Audited(NamedTuple):
  """Results of the audit.

  Attributes:
    found: success by case, and of the negative control; empty if the positive
      control has failed.
    positive: success of the positive control.
    persons: number of persons.
    shadows: number of models.
    left_out: number of pairs of a person and a model without a result, because
      all other models have the person or none has.
    failed: controls that failed.
  """

  found: dict[str, Detection]
  positive: Detection
  persons: int
  shadows: int
  left_out: int
  failed: tuple[str, ...]


def audit(
  run: LoadedRun,
  folder: Path,
  shadows: int,
  seed: int = 0,
  tell: Tell = print,
) -> Audited:
  """Trains shadow models of a run and attacks each with the others.

  An audit that was stopped continues with the models in its folder.

  Args:
    run: whose configuration and clients are used.
    folder: of the models; the caller deletes it.
    shadows: their number, four or more.
    seed: of the halves and of the models.
    tell: called with a line after each model.

  Raises:
    ConfigError: for a run whose shadow models would say nothing, or clients
      that share persons.
    DataError: if too few persons have enough images.
  """
  shadow_models.check(run)
  persons = shadow_persons.of_clients(
    run.federation.clients, run.config.data.client_split
  )
  number = sum(one.number for one in persons)
  positive = attack(persons, shadows, seed)
  # The control takes a minute and each shadow model as long as the run, so no
  # model is trained after a control that failed.
  if not positive.auc >= SUCCESS:  # or no number
    failed = f'persons learnt by heart have an AUC of {positive.auc:.3f}'
    return Audited({}, positive, number, 0, 0, (f'{failed}, below {SUCCESS}',))
  included: list[np.ndarray] = []
  scores: dict[str, list[np.ndarray]] = {c: [] for c in shadow_persons.CASES}
  for model in range(shadows):
    # The halves follow from the number of the model, so that an audit that is
    # started again gets the halves of the models that it finds.
    rng = np.random.default_rng([seed, model])
    halves = [shadow_persons.half(one.number, rng) for one in persons]
    found = shadow_models.scores(
      run, persons, halves, folder / str(model), int(rng.integers(SEEDS))
    )
    included.append(np.concatenate(halves))
    for case, values in found.items():
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
  """Returns the results with the verdict on the negative control."""
  found: dict[str, Detection] = {}
  for case, values in scores.items():
    ratios = membership.log_ratios(values, included)
    found[case] = membership.measure(ratios, included, seed)
  first = shadow_persons.CASES[0]
  ratios = membership.log_ratios(scores[first], others)
  found[NEGATIVE] = membership.measure(ratios, others, seed)
  failed: tuple[str, ...] = ()
  if not membership.at_chance(ratios, others, seed):
    failed = (
      f'other halves are found with an AUC of {found[NEGATIVE].auc:.3f}',
    )
  counted = found[first].members + found[first].non_members
  return Audited(
    found,
    positive,
    included.shape[1],
    len(included),
    included.size - counted,
    failed,
  )
