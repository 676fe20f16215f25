"""Some persons of a test in the plane (L2RW, figure 3).

Points are the ranked features, with a colour per person and a marker per
modality. Runs are side by side and show the same images. Features that are good
for retrieval separate persons and not modalities.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedreid_jax.figures import canvas, tsne
from fedreid_jax.figures.clouds import Cloud
from fedreid_jax.training.loaded_run import LoadedRun

PERSONS = 8  # as many as there are colours
IMAGES = 24  # largest number per person and modality


def of(run: LoadedRun, target: str = '', seed: int = 0) -> list[Cloud]:
  """Returns a cloud of ranked features for each of some persons of a test.

  Args:
    run: run with the model.
    target: name of the test, '' for the first.
    seed: random seed of persons and images.
  """
  own = run.target(target).images
  rng = np.random.default_rng(seed)
  # The draw depends only on the seed and the test, so that all runs side by
  # side show the same images.
  everyone = np.unique(own.identities)
  chosen = []
  for person in np.sort(rng.permutation(everyone)[:PERSONS]):
    for kind in np.unique(own.modalities):
      rows = (own.identities == person) & (own.modalities == kind)
      drawn = rng.permutation(np.flatnonzero(rows))[:IMAGES]
      chosen += [(int(row), int(person)) for row in np.sort(drawn)]
  rows, owners = np.asarray(chosen).T
  features = run.ranked(own.images()[rows], own.modalities[rows])
  return [
    Cloud(
      f'person {person}',
      features[owners == person],
      own.modalities[rows[owners == person]],
    )
    for person in np.unique(owners)
  ]


def draw(
  runs: Sequence[tuple[str, LoadedRun]], target: str = '', seed: int = 0
) -> Any:
  """Draws a panel per run.

  Args:
    runs: (label, run).
    target: name of the test, '' for the first of each run.
    seed: random seed of persons, images and t-SNE.
  """
  figure, panels = canvas.row(len(runs), 4.2, 4.4)
  for axes, (label, run) in zip(panels, runs, strict=True):
    shown = of(run, target, seed)
    for k, (cloud, where) in enumerate(
      zip(shown, tsne.embed(shown, seed), strict=True)
    ):
      colour = canvas.COLOURS[k % len(canvas.COLOURS)]
      tsne.scatter(axes, cloud, where, tsne.Style(colour, colour, 'none'))
    axes.set_title(f'{label}: persons of {run.target(target).name}', fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    _legend(axes, np.concatenate([c.kinds for c in shown]))
  return figure


def _legend(axes, modalities: np.ndarray) -> None:
  """Adds a legend of the markers of modalities; colours have no legend."""
  kinds = np.unique(modalities)
  if len(kinds) < 2:
    return
  marks = [
    axes.scatter([], [], s=24, color='grey', marker=tsne.MARKERS[kind])
    for kind in kinds
  ]
  names = ['visible', 'infrared']
  axes.legend(
    marks,
    [names[kind] for kind in kinds],
    fontsize=8,
    loc='upper center',
    bbox_to_anchor=(0.5, 0),
    ncols=2,
    frameon=False,
  )
