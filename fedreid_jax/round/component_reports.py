"""Notices, warnings and models of clients that components report."""

from collections.abc import Sequence

import numpy as np

from fedreid_jax.core.types import Flat
from fedreid_jax.method.component import Component
from fedreid_jax.round.devices.client_store import ClientStore


def notices(components: Sequence[Component]) -> list[str]:
  """Returns the texts that components want users to read when a run begins."""
  texts = [component.notice for component in components]
  return [text for text in texts if text]


def warnings(
  components: Sequence[Component], metrics: dict[str, float]
) -> list[str]:
  """Returns the components' warnings about the metrics of a round."""
  texts: list[str] = []
  for component in components:
    prefix = f'{component.name}_'
    own = {
      name.removeprefix(prefix): value
      for name, value in metrics.items()
      if name.startswith(prefix)
    }
    if component.warn and own:
      texts.append(component.warn(own))
  return [text for text in texts if text]


def models_to_evaluate(
  components: Sequence[Component], store: ClientStore
) -> dict[int, Flat]:
  """Returns the clients' own models that components keep for evaluation.

  Args:
    components: components of the method.
    store: states of the clients; a client whose state was never written has no
      such model.

  Returns:
    Variables by canonical index of the client.
  """
  models: dict[int, Flat] = {}
  for component in components:
    if 'local_model' in component.properties:
      for k in store.written():
        kept = store.row(k).states.get(component.name)
        # The state of a client that is a real site stays there.
        if kept is None:
          continue
        variables, present = kept
        if np.asarray(present):
          models[k] = dict(variables)
  return models
