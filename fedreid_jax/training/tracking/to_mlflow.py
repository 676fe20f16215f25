"""Metrics and images in a tracking store of MLflow.

MLflow's environment variables select the store (`MLFLOW_TRACKING_URI`) and the
experiment (`MLFLOW_EXPERIMENT_NAME`).
"""

import importlib
import os
import re
import time
from typing import Any

from fedreid_jax.config import parsing
from fedreid_jax.training import callbacks
from fedreid_jax.training.tracking.sent import Sent
from fedreid_jax.training.tracking.tracker import Measured

EXPERIMENT = 'fedreid_jax'  # without MLFLOW_EXPERIMENT_NAME
# MLflow's limits of a call and of the text of a parameter.
METRICS, PARAMETERS, LETTERS = 1000, 100, 500


class Writer:
  """Writes to a run of MLflow; a resumed run continues the same one."""

  def __init__(self, start: callbacks.Start):
    self._mlflow: Any = importlib.import_module('mlflow')
    self._entities: Any = importlib.import_module('mlflow.entities')
    self._sent = Sent(start.workdir, 'mlflow')
    uri, before = self._mlflow.get_tracking_uri(), self._sent.entry.get('uri')
    if before and not self._mlflow.is_tracking_uri_set():
      uri = before  # the default depends on the current directory
    # The functions of the module `mlflow` have one active run per process, and
    # several threads may train.
    self._client = self._mlflow.MlflowClient(tracking_uri=uri)
    if uri == before:
      self._run = self._sent.entry['id']
      self._client.update_run(self._run, status='RUNNING')
    else:
      self._run = self._create(start)
      self._sent.begin(id=self._run, uri=uri)

  def _create(self, start: callbacks.Start) -> str:
    """Creates a run with the configuration as its parameters."""
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME', EXPERIMENT)
    found = self._client.get_experiment_by_name(name)
    experiment = (
      found.experiment_id if found else self._client.create_experiment(name)
    )
    created = self._client.create_run(
      experiment,
      run_name=start.name,
      tags={'workdir': str(start.workdir)},
    )
    parameters = [
      self._entities.Param(key, str(value)[:LETTERS])
      for key, value in parsing.flatten(start.config).items()
    ]
    for first in range(0, len(parameters), PARAMETERS):
      part = parameters[first : first + PARAMETERS]
      self._client.log_batch(created.info.run_id, params=part)
    return created.info.run_id

  def write(self, measured: Measured) -> None:
    """Sends numbers and images, unless they have been sent before."""
    if not self._sent.take(measured):
      return
    now = int(time.time() * 1000)
    metrics = [
      self._entities.Metric(_allowed(name), value, now, measured.round)
      for name, value in measured.scalars.items()
    ]
    for first in range(0, len(metrics), METRICS):
      part = metrics[first : first + METRICS]
      self._client.log_batch(self._run, metrics=part)
    for name, image in measured.images.items():
      self._client.log_image(
        self._run, image, key=_allowed(name), step=measured.round
      )

  def close(self, error: BaseException | None) -> None:
    """Sets the status of the run."""
    stopped = isinstance(error, SystemExit | KeyboardInterrupt)
    status = 'KILLED' if stopped else 'FAILED' if error else 'FINISHED'
    self._client.set_terminated(self._run, status)


def _allowed(name: str) -> str:
  """Replaces letters that MLflow does not allow in a name by underscores."""
  return re.sub(r'[^A-Za-z0-9_./ -]', '_', name)
