"""The names of the models of a run in files and commands."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import types


def of(
  shared: types.Flat,
  personal: Mapping[int, types.Flat],
  groups: np.ndarray,
  names: Sequence[str],
) -> dict[str, types.Flat]:
  """Returns the variables of each model of a run by its name.

  A single model is named 'global', and several are named 'cluster:GROUP'.
  Without shared parameters the model of each client is named 'client:NAME'.

  Args:
    shared: shared parameters, `[G, ...]`.
    personal: personal parameters by canonical index of the client.
    groups: group of every client, int32 `[N]`.
    names: of the clients, `N`.
  """
  if not shared:
    return {
      f'client:{name}': personal[k]
      for k, name in enumerate(names)
      if k in personal
    }
  several = next(iter(shared.values())).shape[0] > 1
  # A model of the server gets personal parameters of any client, because only
  # identity scores depend on them.
  own = personal[min(personal)] if personal else {}
  return {
    f'cluster:{group}' if several else 'global': {
      n: leaf[group] for n, leaf in shared.items()
    }
    | own
    for group in np.unique(groups)
  }


def choose(models: Mapping[str, Any], name: str) -> str:
  """Returns the name of a model that exists, the first one for ''."""
  if not models:
    raise errors.ConfigError(
      'the checkpoint has no model: its clients have not trained',
      '--checkpoint',
      'choose a later one',
    )
  name = name or next(iter(models))
  if name not in models:
    raise errors.ConfigError(
      f'no model {name!r}', '--model', f'there are {", ".join(models)}'
    )
  return name
