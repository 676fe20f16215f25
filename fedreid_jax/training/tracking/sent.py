"""Record of the measurements that were sent to tracking services.

MLflow and Weights & Biases cannot delete a measurement. Therefore
`tracking.json` in the work directory has the identifier of the run at each
service and the last round that was sent. A run that is killed and resumed sends
no round twice; the service may lack the round during which it was killed.
"""

from pathlib import Path
from typing import Any

from fedreid_jax.training.files import recorder
from fedreid_jax.training.tracking.tracker import Measured

FILE = 'tracking.json'


class Sent:
  """The entry of one service.

  Attributes:
    entry: JSON values; 'id' is the identifier of the run, if it has one.
  """

  def __init__(self, workdir: Path, service: str):
    """Reads the entry."""
    self._path, self._service = workdir / FILE, service
    self.entry: dict[str, Any] = self._read().get(service, {})

  def _read(self) -> dict[str, Any]:
    return recorder.read_object(self._path) if self._path.exists() else {}

  def begin(self, **entry: Any) -> None:
    """Replaces the entry by one for a new run at the service."""
    self.entry = entry
    self._save()

  def take(self, measured: Measured) -> bool:
    """Returns whether measurements are new, and marks them as sent."""
    new = measured.round > self.entry.get(measured.kind, -1)
    # Written before the measurements are sent: a run that is killed between the
    # two loses them at the service, which is better than sending them twice.
    if new:
      self.entry[measured.kind] = measured.round
      self._save()
    return new

  def _save(self) -> None:
    recorder.write_json(self._path, self._read() | {self._service: self.entry})
