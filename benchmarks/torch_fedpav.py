"""A plain PyTorch FedPav loop, the reference of `benchmarks.round`.

It has the same network, batches of 32, random shifts of up to 3 pixels, SGD
with Nesterov momentum and weighted averaging as this engine. `best` stores
images in channels_last; its caller also raises glibc's mmap and trim
thresholds, because page faults otherwise take a fifth of the time.
"""

import copy
import time

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

FEATURES = (32, 64, 128, 128)


def network(
  columns: int, features: tuple[int, ...] = FEATURES, channels: int = 1
) -> nn.Module:
  """Conv-BN-ReLU-pool blocks, mean over positions, BN neck, classifier."""
  layers: list[nn.Module] = []
  for inputs, outputs in zip((channels, *features[:-1]), features, strict=True):
    layers += [
      nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
      nn.BatchNorm2d(outputs),
      nn.ReLU(),
      nn.MaxPool2d(2),
    ]
  neck = nn.BatchNorm1d(features[-1], affine=False)
  classifier = nn.Linear(features[-1], columns, bias=False)
  return nn.Sequential(
    *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), neck, classifier
  )


class Round:
  """FedPav of given clients; a call runs one round."""

  def __init__(self, clients, batch: int, best: bool):
    """Builds one model per client from `(images uint8, labels)` pairs."""
    self._batch = batch
    self._layout = torch.channels_last if best else torch.contiguous_format
    self._data = [
      (
        torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
        torch.from_numpy(labels.astype(np.int64)),
      )
      for images, labels in clients
    ]
    columns = max(int(labels.max()) + 1 for _, labels in clients)
    one = network(columns).to(memory_format=self._layout)  # pyright: ignore
    self._models = [copy.deepcopy(one) for _ in clients]
    self._rng = np.random.default_rng(0)

  def _view(self, images: torch.Tensor) -> torch.Tensor:
    size = images.shape[-1]
    wide = nn.functional.pad(images, (3, 3, 3, 3))
    shifts = self._rng.integers(0, 7, (len(images), 2))
    cut = [
      image[:, y : y + size, x : x + size]
      for image, (y, x) in zip(wide, shifts, strict=True)
    ]
    images = torch.stack(cut).float().mul_(1 / 255)
    return images.contiguous(memory_format=self._layout)

  def _train(self, model: nn.Module, images, labels) -> int:
    optimizer = torch.optim.SGD(
      model.parameters(), 0.05, 0.9, weight_decay=5e-4, nesterov=True
    )
    model.train()
    order = torch.from_numpy(self._rng.permutation(len(labels)))
    steps = len(labels) // self._batch
    for rows in order[: steps * self._batch].view(steps, self._batch):
      optimizer.zero_grad(set_to_none=True)
      logits = model(self._view(images[rows]))
      nn.functional.cross_entropy(logits, labels[rows]).backward()
      optimizer.step()
    return steps * self._batch

  def __call__(self) -> tuple[int, float]:
    """Runs a round; returns (images trained on, seconds)."""
    start = time.perf_counter()
    seen = 0
    for model, (images, labels) in zip(self._models, self._data, strict=True):
      seen += self._train(model, images, labels)
    sizes = np.array([len(labels) for _, labels in self._data])
    weights = sizes / sizes.sum()
    states = [model.state_dict() for model in self._models]
    with torch.no_grad():
      for name, value in states[0].items():
        if not value.is_floating_point() or name.startswith('20.'):
          continue
        mean = sum(
          w * state[name] for w, state in zip(weights, states, strict=True)
        )
        for state in states:
          state[name].copy_(mean)
    return seen, time.perf_counter() - start
