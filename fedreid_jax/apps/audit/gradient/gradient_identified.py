"""Retrieval of persons with images reconstructed from gradients.

A reconstruction may differ from the image in its pixels and still show who the
person is. The reconstructions are queries, and a model, the judge, ranks the
other images of the client. The judge should be another run than the attacked
one, with other initial weights.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from fedreid_jax.apps.audit import detection
from fedreid_jax.core.types import ClientData
from fedreid_jax.training.loaded_run import LoadedRun


class Identified(NamedTuple):
  """Retrieval with reconstructions as queries.

  Attributes:
    rank1: share of the reconstructions whose nearest image shows the person.
    interval: 95 % interval of `rank1` by Clopper and Pearson.
    real: the same share of the attacked images themselves.
    chance: share of the images that show the person, the mean over queries.
  """

  rank1: float
  interval: tuple[float, float]
  real: float
  chance: float


def identify(
  by: LoadedRun,
  client: ClientData,
  rows: Int[np.ndarray, ' B'],
  found: UInt8[np.ndarray, 'B H W ch'],
) -> Identified:
  """Measures how often reconstructions retrieve their persons.

  Args:
    by: run with the judging model.
    client: client with the images.
    rows: rows of the attacked images, whose persons have other images.
    found: their reconstructions.
  """
  every = by.ranked(client.images(), client.modalities)
  # The attacked images leave the gallery, in which they would find themselves.
  others = np.setdiff1d(np.arange(len(every)), rows)
  wanted, known = client.labels[rows], client.labels[others]

  def right(queries: np.ndarray) -> int:
    nearest = by.distances(queries, every[others]).argmin(axis=1)
    return int((known[nearest] == wanted).sum())

  hits = right(by.ranked(found, client.modalities[rows]))
  return Identified(
    rank1=hits / len(rows),
    interval=detection.proportion(hits, len(rows)),
    real=right(every[rows]) / len(rows),
    chance=float((known[None] == wanted[:, None]).mean()),
  )
