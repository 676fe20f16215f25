"""Metrics and images as event files of TensorBoard, by tensorboardX."""

import importlib
import json
import time
from typing import Any

from fedreid_jax.training import callbacks
from fedreid_jax.training.tracking.tracker import Measured

FOLDER = 'tensorboard'


class Writer:
  """Writes a file of events in the folder `tensorboard`.

  A resumed run writes a new file.
  """

  def __init__(self, start: callbacks.Start):
    # Not `SummaryWriter`, which writes in a thread: on a full disk this thread
    # ends, and the run waits for it forever. `EventsWriter` raises in this one.
    self._protos: Any = importlib.import_module('tensorboardX.proto.event_pb2')
    self._summary: Any = importlib.import_module('tensorboardX.summary')
    writer: Any = importlib.import_module('tensorboardX.event_file_writer')
    folder = start.workdir / FOLDER
    folder.mkdir(exist_ok=True)
    # TensorBoard reads files by name, and the name has the time in seconds.
    number = len([*folder.iterdir()])
    self._file = writer.EventsWriter(str(folder / 'events'), f'.{number:04}')
    # This event makes TensorBoard drop the rounds that are computed again.
    if number:
      event = self._event(start.kept + 1)
      event.session_log.status = self._protos.SessionLog.START
      self._file.write_event(event)
    if not start.resumed:
      text = json.dumps(start.config, indent=2, sort_keys=True)
      text = ''.join(f'    {line}\n' for line in text.splitlines())
      self._add(0, [self._summary.text('config', text)])

  def write(self, measured: Measured) -> None:
    """Writes the numbers and images as one event."""
    found = [self._summary.scalar(*item) for item in measured.scalars.items()]
    for name, image in measured.images.items():
      found.append(self._summary.image(name, image, dataformats='HWC'))
    self._add(measured.round, found)

  def close(self, error: BaseException | None) -> None:
    """Closes the file."""
    self._file.close()

  def _event(self, step: int) -> Any:
    return self._protos.Event(wall_time=time.time(), step=step)

  def _add(self, step: int, summaries: list[Any]) -> None:
    event = self._event(step)
    for one in summaries:
      event.summary.value.extend(one.value)
    self._file.write_event(event)
    self._file.flush()
