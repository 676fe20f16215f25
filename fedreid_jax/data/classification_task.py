"""Classification tests, which show other images of the training classes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData
from fedreid_jax.data.federation import Images, Source, Target, Trial
from fedreid_jax.evaluation.protocol import protocols


def make_target(images: Images, learned: Int[np.ndarray, ' learned']) -> Target:
  """Makes a target whose labels number the classes as the clients do.

  Args:
    images: test images.
    learned: identities of the training images, in any order, repeated or not.

  Raises:
    DataError: without test images, or for a class without training images.
  """
  people = images.identities
  if not len(people):
    raise errors.DataError('no test images', images.name, 'make it a source')
  unknown = np.setdiff1d(people, learned)
  if len(unknown):
    raise errors.DataError(
      f'classes {unknown[:5].tolist()} are tested on and not trained on',
      images.name,
      'test fewer classes, or train on more',
    )
  # The rank among the training identities is the label that clients use, also
  # where the test shows only some of the classes.
  labels = np.searchsorted(np.unique(learned), people).astype(np.int32)
  rows = np.arange(len(people))
  # Nothing is ranked, so the gallery is empty.
  return Target(
    images.name,
    images._replace(identities=labels),
    (Trial(rows, rows[:0]),),
    protocols.ACCURACY,
  )


def check_clients(source: Source, clients: Sequence[ClientData]) -> None:
  """Refuses clients that do not number the classes as the targets do.

  Raises:
    ConfigError: for a domain other than the tested one, or a client split in
      which each client numbers only the identities that it has.
  """
  learned = [domain.name for domain in source.domains]
  tested = {target.name for target in source.targets}
  if len(learned) > 1 or tested - set(learned):
    raise errors.ConfigError(
      f'{learned} are trained on and {sorted(tested)} tested on',
      'data.sources',
      'classification is of one domain',
    )
  total = len(np.unique(source.domains[0].identities))
  own = {client.num_identities for client in clients}
  if own != {total}:
    raise errors.ConfigError(
      f'clients number {sorted(own)} classes of {total}',
      'data.client_split',
      "classification needs 'iid', 'dirichlet' or 'centralised'",
    )
