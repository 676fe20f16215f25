"""Simulates federated learning on arrays, without a configuration.

  python examples/simulate.py

takes less than a minute on the CPU of a laptop.
"""

import jax
import numpy as np

import fedreid_jax as fr
from fedreid_jax.algorithms import fedpav, fedprox
from fedreid_jax.method import optimizers
from fedreid_jax.models import convnet, reid


def client(name: str, seed: int):
  """Returns a client of 8 persons, each a colour, with 6 noisy images."""
  rng = np.random.default_rng(seed)
  labels = np.repeat(np.arange(8), 6)
  colours = rng.integers(60, 200, (8, 1, 1, 3))
  noise = rng.integers(-40, 40, (len(labels), 16, 8, 3))
  return fr.client_data(name, (colours[labels] + noise).astype('u1'), labels)


def main() -> None:
  """Trains FedPav with a proximal term for five rounds."""
  simulation = fr.Simulation(
    lambda identities: reid.ReIDNet(convnet.ConvNet((8, 16)), identities),
    [fedpav.make(), fedprox.make(fedprox.Options(mu=0.1))],
    [client('entrance', 0), client('hall', 1), client('garage', 2)],
    optimizer=optimizers.sgd(0.9, nesterov=True, weight_decay=5e-4),
    fields={'local.batch': 16, 'optim.lr': 0.05},
  )
  state = simulation.init(jax.random.key(0))
  for _ in range(5):
    state, log = simulation.round(state)
    print(f'round {state.round}: loss {log["metrics"]["loss"]:.3f}')
  print(f'models: {", ".join(simulation.models(state))}')


if __name__ == '__main__':
  main()
