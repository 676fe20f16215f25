"""The work of `benchmarks.thousand_clients`: images, networks and turns."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

SIZE, IDENTITIES, BATCH, RATE = 16, 10, 16, 0.1
CHANNELS = 8, 16


def images(num: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns all images uint8 `[M, 16, 16, 1]` and labels, of ten patterns."""
  rng = np.random.default_rng(0)
  patterns = rng.integers(0, 256, (IDENTITIES, SIZE, SIZE, 1))
  labels = rng.integers(0, IDENTITIES, num).astype(np.int32)
  noise = rng.normal(0, 60, (num, SIZE, SIZE, 1))
  pixels = patterns[labels] * 0.5 + 64 + noise
  return pixels.clip(0, 255).astype(np.uint8), labels


def clients(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns (images, labels) of each of `count` clients."""
  rng = np.random.default_rng(1)
  sizes = np.exp(rng.normal(np.log(100), 1, count))
  # Only full batches: PyTorch cannot normalise a batch of one image.
  sizes = sizes.clip(BATCH, 400).astype(int) // BATCH * BATCH
  pixels, labels = images(int(sizes.sum()))
  ends = np.cumsum(sizes)
  return [
    (pixels[end - size : end], labels[end - size : end])
    for size, end in zip(sizes, ends, strict=True)
  ]


def torch_model(seed: int):
  """Returns the same network in PyTorch, with the interface of pfl."""
  import torch  # pyright: ignore[reportMissingImports]
  from torch import nn  # pyright: ignore[reportMissingImports]

  from benchmarks import torch_fedpav

  class Network(nn.Module):  # pyright: ignore
    def __init__(self):
      super().__init__()
      self.layers = torch_fedpav.network(IDENTITIES, CHANNELS)
      # The initial weights of this engine; the loss depends on their size.
      for layer in self.layers:
        if isinstance(layer, nn.Conv2d):
          nn.init.kaiming_normal_(layer.weight, mode='fan_out')
        if isinstance(layer, nn.Linear):
          nn.init.normal_(layer.weight, std=0.001)
      self.seen, self.total = 0, 0.0

    def loss(self, pixels, labels):
      self.train()
      logits = self.layers((pixels.float() / 255 - 0.5) / 0.25)
      value = nn.functional.cross_entropy(logits, labels)
      self.seen += len(labels)
      self.total += float(value.detach()) * len(labels)
      return value

    def metrics(self, *_):
      return {}

    def mean_loss(self) -> float:
      """Returns the mean loss since the last call."""
      mean = self.total / max(self.seen, 1)
      self.seen, self.total = 0, 0.0
      return mean

  torch.manual_seed(seed)
  return Network()


def torch_clients(count: int) -> list:
  """Returns (images `[M, 1, 16, 16]`, labels) of every client as tensors."""
  import torch  # pyright: ignore[reportMissingImports]

  return [
    (
      torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(),
      torch.from_numpy(labels.astype(np.int64)),
    )
    for pixels, labels in clients(count)
  ]


class Turn:
  """Turns of a contender: reports a round and waits for the next one."""

  def __init__(self):
    """Waits for the first turn."""
    sys.stdin.readline()
    self._start = time.perf_counter()

  def done(self, loss: float) -> None:
    """Prints a round; ends the process if there is no other turn."""
    now = time.perf_counter()
    figures = {
      'loss': loss,
      'seconds': now - self._start,
      'memory': memory(),
    }
    print(json.dumps(figures), flush=True)
    if not sys.stdin.readline():
      os._exit(0)
    self._start = time.perf_counter()


def memory() -> float:
  """Returns the resident memory of this process and its descendants in MiB."""
  parents: dict[int, int] = {}
  pages: dict[int, int] = {}
  for path in Path('/proc').glob('[0-9]*'):
    try:
      fields = (path / 'stat').read_text().rpartition(')')[2].split()
      pages[int(path.name)] = int((path / 'statm').read_text().split()[1])
      parents[int(path.name)] = int(fields[1])
    except OSError:  # it has ended
      continue
  total, family = 0, {os.getpid()}
  while family:
    total += sum(pages[process] for process in family)
    family = {child for child, parent in parents.items() if parent in family}
  return total * os.sysconf('SC_PAGESIZE') / 2**20
