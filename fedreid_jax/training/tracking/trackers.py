"""The trackers that a configuration lists, by their names."""

import importlib
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.core import extras
from fedreid_jax.training.files import recorder
from fedreid_jax.training.tracking import (
  sent,
  to_csv,
  to_mlflow,
  to_tensorboard,
  to_wandb,
  tracker,
)


class Kind(NamedTuple):
  """One kind of tracker.

  Attributes:
    open: returns the writer of a run that starts.
    package: module that it needs, '' for none.
    extra: name of the extra of this package that installs the module.
    written: files and folders in a work directory.
  """

  open: tracker.Open
  package: str = ''
  extra: str = ''
  written: tuple[str, ...] = ()


KINDS = {
  'csv': Kind(to_csv.Writer, written=(to_csv.FILE,)),
  'tensorboard': Kind(
    to_tensorboard.Writer, 'tensorboardX', 'track', (to_tensorboard.FOLDER,)
  ),
  'mlflow': Kind(to_mlflow.Writer, 'mlflow', 'mlflow', (sent.FILE,)),
  'wandb': Kind(
    to_wandb.Writer, 'wandb', 'wandb', (sent.FILE, to_wandb.FOLDER)
  ),
}


def written(names: tuple[str, ...]) -> tuple[str, ...]:
  """Returns the files and folders of trackers in a work directory."""
  return tuple({path: None for n in names for path in KINDS[n].written})


def check(names: tuple[str, ...]) -> None:
  """Refuses trackers whose packages cannot be imported.

  Args:
    names: `config.track`.

  Raises:
    ConfigError: naming the extra that installs the package.
  """
  for name in names:
    kind = KINDS[name]
    try:
      if kind.package:
        importlib.import_module(kind.package)
    except ImportError as error:
      raise errors.ConfigError(
        f'{name} needs {kind.package}, which cannot be imported: {error}',
        'track',
        extras.command(kind.extra),
      ) from error


def make(config: Any, record: recorder.Recorder) -> list[tracker.Tracker]:
  """Returns the trackers of a run.

  Args:
    config: all of it.
    record: prints and stores the message about a tracker that fails.
  """

  def warn(round_: int, what: str) -> None:
    record.event(round_, 'warning', {'warning': what})
    record.say(f'warning: {what}')

  return [tracker.Tracker(n, KINDS[n].open, warn) for n in config.track]
