"""Federated person re-identification as pure functions over clients.

`__all__` is the public API. Its names are imported when they are first used:
`import fedreid_jax` imports no JAX and takes milliseconds.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fedreid_jax.version import __version__ as __version__

if TYPE_CHECKING:
  from fedreid_jax import errors
  from fedreid_jax.config.load import load_config
  from fedreid_jax.data.arrays import client_data
  from fedreid_jax.evaluation.evaluators.retrieval import evaluate_retrieval
  from fedreid_jax.evaluation.index import Gallery
  from fedreid_jax.evaluation.ranking import evaluate_ranking
  from fedreid_jax.training.callbacks import Callback, StopTraining
  from fedreid_jax.training.loop import train
  from fedreid_jax.training.run_evaluation import evaluate
  from fedreid_jax.training.simulation_api import Simulation
  from fedreid_jax.training.snapshot import Snapshot, load

__all__ = [
  'Callback',
  'Gallery',
  'Simulation',
  'Snapshot',
  'StopTraining',
  'client_data',
  'errors',
  'evaluate',
  'evaluate_ranking',
  'evaluate_retrieval',
  'load',
  'load_config',
  'train',
]

_MODULES = {
  'Callback': 'training.callbacks',
  'Gallery': 'evaluation.index',
  'Simulation': 'training.simulation_api',
  'Snapshot': 'training.snapshot',
  'StopTraining': 'training.callbacks',
  'client_data': 'data.arrays',
  'evaluate': 'training.run_evaluation',
  'evaluate_ranking': 'evaluation.ranking',
  'evaluate_retrieval': 'evaluation.evaluators.retrieval',
  'load': 'training.snapshot',
  'load_config': 'config.load',
  'train': 'training.loop',
}


def __getattr__(name: str) -> Any:
  """Imports a public name when it is first used."""
  if name == 'errors':
    return importlib.import_module('fedreid_jax.errors')
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'fedreid_jax.{_MODULES[name]}')
  value = globals()[name] = getattr(module, name)
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
