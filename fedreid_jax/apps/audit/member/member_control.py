"""The positive control of the audit of membership.

A small network learns a few persons of the run by heart, without augmentation,
once for each random half of these persons; the attacker has the images of the
training. The networks are clients that share nothing, so that they train in one
program.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.algorithms import standalone
from fedreid_jax.apps.audit.detection import Detection
from fedreid_jax.apps.audit.member import membership, shadow_persons
from fedreid_jax.apps.audit.member.shadow_persons import Persons
from fedreid_jax.models import convnet, reid
from fedreid_jax.training.simulation import Simulation

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
  """Returns how well members of the training are found by their images.

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
