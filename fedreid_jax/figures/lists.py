"""Ranked lists of the queries of a test of a saved run."""

from collections.abc import Sequence

from fedreid_jax.evaluation import gallery
from fedreid_jax.training.loaded_run import LoadedRun


def draw(
  run: LoadedRun,
  target: str,
  num: int,
  seed: int,
  places: Sequence[int] | None = None,
) -> list[gallery.Ranked]:
  """Ranks the gallery of a test for some queries that have a match.

  Args:
    run: run with the model.
    target: name of the test, '' for the first; of several trials the first is
      used.
    num: largest number of queries, which are drawn at random.
    seed: random seed of the queries.
    places: numbers of the queries, instead of a draw.
  """
  test = run.target(target)
  features = run.ranked(test.images.images(), test.images.modalities)
  config = run.config.evaluation
  return gallery.draw_lists(features, test, config, num, seed, places)
