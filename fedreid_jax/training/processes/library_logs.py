"""Suppression of log messages of Orbax on which a user cannot act."""

import contextlib
import logging
import threading
from collections.abc import Iterator


class _Filter(logging.Filter):
  """Drops warnings of Orbax while this package uses it, in any thread."""

  def __init__(self):
    super().__init__()
    self.users = 0
    self.lock = threading.Lock()

  def filter(self, record: logging.LogRecord) -> bool:
    of_orbax = 'orbax' in record.pathname
    return not (self.users and of_orbax and record.levelno < logging.ERROR)


_filter = _Filter()


@contextlib.contextmanager
def muted() -> Iterator[None]:
  """Drops the warnings of Orbax until the end of the block."""
  # Only then, because a caller may use Orbax as well and want its warnings.
  logger = logging.getLogger('absl')
  with _filter.lock:
    logger.addFilter(_filter)  # once, however often it is added
    _filter.users += 1
  try:
    yield
  finally:
    with _filter.lock:
      # Other threads may still be in such a block.
      _filter.users -= 1
      if not _filter.users:
        logger.removeFilter(_filter)
