"""Trains a small model on synthetic data and searches a gallery with it.

  python examples/train_and_search.py

takes less than a minute on the CPU of a laptop. For photos of your own, give
paths of files to `model.embed` instead of the pixels of the synthetic target.
"""

import tempfile

import fedreid_jax as fr
from fedreid_jax.data import load


def main() -> None:
  """Prints the persons that are found for some queries."""
  config = fr.load_config('dfh:smoke', rounds=5)
  with tempfile.TemporaryDirectory() as workdir:
    results = fr.train(config, workdir, verbose=True)
    model = fr.load(workdir)
  print(
    f'{len(results["evaluation"])} evaluations, model of round {model.step}'
  )

  target = load.load(model.config.data).targets[0]  # persons of no client
  images, trial = target.images, target.trials[0]
  vectors = model.embed(images.images())
  gallery = fr.Gallery(
    vectors[trial.gallery],
    images.identities[trial.gallery],
    images.cameras[trial.gallery],
  )
  queries = trial.query[:5]
  _, distances, found = gallery.search(
    vectors[queries], k=5, cameras=images.cameras[queries]
  )
  for query, persons, near in zip(queries, found, distances[:, 0], strict=True):
    person = images.identities[query]
    print(f'person {person}: found {persons.tolist()}, nearest at {near:.2f}')


if __name__ == '__main__':
  main()
