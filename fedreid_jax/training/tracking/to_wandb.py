"""Metrics and images in a run of Weights & Biases.

The environment variables of the service apply, such as `WANDB_MODE=offline`,
`WANDB_ENTITY` and `WANDB_PROJECT`.
"""

import importlib
import os
import uuid
from typing import Any

from fedreid_jax.config import parsing
from fedreid_jax.training import callbacks
from fedreid_jax.training.tracking.sent import Sent
from fedreid_jax.training.tracking.tracker import Measured

FOLDER = 'wandb'  # in the work directory; the service names it
PROJECT = 'fedreid_jax'  # without WANDB_PROJECT
# Seconds. Without limits a run would wait for a login, or at its end for a
# network that was lost. Measurements that were not uploaded stay on the disk.
LOGIN_S, FINISH_S = 60, 300


class Writer:
  """Writes to a run of the service; a resumed run continues the same one."""

  def __init__(self, start: callbacks.Start):
    self._wandb: Any = importlib.import_module('wandb')
    self._sent = Sent(start.workdir, 'wandb')
    if 'id' not in self._sent.entry:
      self._sent.begin(id=uuid.uuid4().hex[:8])
    self._run = self._wandb.init(
      id=self._sent.entry['id'],
      resume='allow',
      project=os.environ.get('WANDB_PROJECT', PROJECT),
      name=start.name,
      dir=str(start.workdir),
      config=parsing.flatten(start.config),
      reinit='create_new',  # other threads may have runs
      settings=self._wandb.Settings(
        console='off',
        silent=True,
        login_timeout=LOGIN_S,
        finish_timeout=FINISH_S,
      ),
    )
    # Steps of the service must increase with every call, so that they cannot be
    # rounds: round R has steps 2 R (training) and 2 R + 1 (evaluation).
    self._run.define_metric('round')
    self._run.define_metric('*', step_metric='round')

  def write(self, measured: Measured) -> None:
    """Sends numbers and images, unless they have been sent before."""
    if not self._sent.take(measured):
      return
    images = {
      name: self._wandb.Image(image) for name, image in measured.images.items()
    }
    self._run.log(
      {'round': measured.round, **measured.scalars, **images},
      step=2 * measured.round + (measured.kind == 'evaluation'),
      commit=True,
    )

  def close(self, error: BaseException | None) -> None:
    """Ends the run; an error marks it as failed."""
    self._run.finish(exit_code=int(error is not None))
