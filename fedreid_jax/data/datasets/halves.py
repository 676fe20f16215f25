"""The fixed half split of the federated benchmark for small data sets.

Zhuang et al. (MM 2020, Table 1) train on half of the identities and test on all
images of the others: queries from one view, gallery from the other. Their draw
had no seed and cannot be reproduced; here the same procedure has a seed.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from fedreid_jax.data.datasets.records import Record

OPTIONS = {'split': ('images', 'half'), 'trial': tuple(range(10))}


def two_views(records: Sequence[Record], trial: int) -> list[Record]:
  """Assigns two cameras to images of a data set without camera labels.

  A random half of the views of each person, rounded down, becomes camera 1.
  """
  rng = np.random.default_rng([trial, 1])
  views = defaultdict(set)
  for record in records:
    views[record.person].add(record.camera)
  first = {
    person: set(rng.permutation(sorted(own))[: len(own) // 2].tolist())
    for person, own in sorted(views.items())
  }
  return [
    r._replace(camera=1 if r.camera in first[r.person] else 2) for r in records
  ]


def halve(
  records: Sequence[Record], num_train: int, trial: int
) -> list[Record]:
  """Splits by identity: train, and query (camera 1) and gallery (camera 2).

  Args:
    records: images of cameras 1 and 2.
    num_train: number of identities to train on.
    trial: seed of the draw.
  """
  rng = np.random.default_rng([trial, 0])
  people = sorted({record.person for record in records})
  train = set(rng.permutation(people)[:num_train].tolist())
  split = {1: 'query', 2: 'gallery'}
  return [
    r._replace(split='train' if r.person in train else split[r.camera])
    for r in records
  ]


def num_train(records: Sequence[Record], full: int, test: int) -> int:
  """Returns the number of training identities.

  Args:
    records: images of the data set on disk.
    full: number of identities of the published data set.
    test: number of its test identities.
  """
  people = len({record.person for record in records})
  # The published number is fixed; a miniature is divided in halves.
  return people - test if people == full else people // 2
