"""The fields of a configuration that do not belong to components.

`Run` has the fields at the top level; every other class is the group of its
name. The fields of components are declared next to their `make`.
"""

from fedreid_jax.config.groups.images import Augment, Data
from fedreid_jax.config.groups.run import (
  Availability,
  Evaluation,
  Execution,
  Privacy,
  Run,
)
from fedreid_jax.config.groups.training import Local, Loss, Model, Optim

__all__ = [
  'Augment',
  'Availability',
  'Data',
  'Evaluation',
  'Execution',
  'Local',
  'Loss',
  'Model',
  'Optim',
  'Privacy',
  'Run',
]
