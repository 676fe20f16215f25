"""Rounds of FedPav in PyTorch on one device, the reference of the engine.

`python -m benchmarks.torch_rounds --dtype=bfloat16 ...` prints one line of JSON
with the figures of `benchmarks.placement`. Images are on the device as uint8;
crops are drawn for a whole batch by indices, without a loop over images.
"""

import argparse
import copy
import json
import statistics
import time

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from benchmarks import torch_fedpav, torch_resnet
from fedreid_jax.config import schema

IDENTITIES, PAD = 16, 4


class Network(nn.Module):  # pyright: ignore
  """A ResNet with a BN neck and a classifier."""

  def __init__(self, name: str, width: float, mean, std):
    super().__init__()
    model = {'name': name, 'width': width, 'last_stride': 1, 'neck': 'bn'}
    self.backbone = torch_resnet.ResNet(model, mean, std)
    size = self.backbone.neck.bn.num_features
    self.classifier = nn.Linear(size, IDENTITIES, bias=False)

  def forward(self, images):
    """Returns the logits of uint8 images `[B, H, W, 3]`."""
    return self.classifier(self.backbone(images))


class Small(nn.Module):  # pyright: ignore
  """The network `convnet`, of another width."""

  def __init__(self, width: float, mean, std):
    super().__init__()
    features = tuple(round(width * n) for n in torch_fedpav.FEATURES)
    whole = torch_fedpav.network(IDENTITIES, features, channels=3)
    *layers, self.classifier = whole.children()
    self.backbone = nn.Sequential(*layers)
    self.mean, self.std = mean, std

  def forward(self, images):
    """Returns the logits of uint8 images `[B, H, W, 3]`."""
    x = images.permute(0, 3, 1, 2).float() / 255
    mean, std = (x.new_tensor(v)[:, None, None] for v in (self.mean, self.std))
    return self.classifier(self.backbone((x - mean) / std))


def augment(images):
  """Returns crops and mirror images of uint8 images `[B, H, W, 3]`."""
  num, height, width, _ = images.shape
  wide = nn.functional.pad(images, (0, 0, PAD, PAD, PAD, PAD))
  device = images.device
  top = torch.randint(0, 2 * PAD + 1, (num, 1), device=device)
  left = torch.randint(0, 2 * PAD + 1, (num, 1), device=device)
  across = torch.arange(width, device=device)[None]
  flipped = torch.rand(num, 1, device=device) < 0.5
  across = torch.where(flipped, width - 1 - across, across) + left
  down = torch.arange(height, device=device)[None] + top
  each = torch.arange(num, device=device)[:, None, None]
  return wide[each, down[:, :, None], across[:, None, :]]


def train(model, images, labels, batch: int, mixed: bool) -> int:
  """Trains one epoch; returns the number of images."""
  optimizer = torch.optim.SGD(
    model.parameters(), 0.05, 0.9, weight_decay=5e-4, nesterov=True
  )
  order = torch.randperm(len(labels), device=labels.device)
  steps = len(labels) // batch
  kind = labels.device.type
  for rows in order[: steps * batch].view(steps, batch):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(kind, torch.bfloat16, enabled=mixed):
      logits = model(augment(images[rows]))
    nn.functional.cross_entropy(logits.float(), labels[rows]).backward()
    optimizer.step()
  return steps * batch


@torch.no_grad()  # pyright: ignore
def average(models) -> None:
  """Replaces the backbones of all models by their mean."""
  states = [model.backbone.state_dict() for model in models]
  for name, value in states[0].items():
    if value.is_floating_point():
      mean = torch.stack([state[name] for state in states]).mean(0)
      for state in states:
        state[name].copy_(mean)


class Rounds:
  """Rounds of equal clients; a call runs one.

  Attributes:
    device: a GPU if there is one.
  """

  def __init__(
    self,
    model: str,
    width: float,
    shape: tuple[int, int, int],
    clients: int,
    batch: int,
    mixed: bool,
    compiled: bool,
  ):
    """Makes up the images.

    Args:
      model: name of the network.
      width: its channels over those of the standard network.
      shape: number of images of a client, height and width.
      clients: their number.
      batch: number of images in a step.
      mixed: whether to compute in bfloat16.
      compiled: whether to use `torch.compile`.
    """
    self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    data = schema.default().data
    if model == 'convnet':
      one = Small(width, data.mean, data.std)
    else:
      one = Network(model, width, data.mean, data.std)
    one = one.to(self.device)
    one = one.to(memory_format=torch.channels_last).train()  # pyright: ignore
    self._models = [copy.deepcopy(one) for _ in range(clients)]
    # One compiled function serves all models, whose parameters it receives.
    self._shared = copy.deepcopy(one)
    self._step = torch.compile(self._shared) if compiled else self._shared
    self._images = torch.randint(
      0, 256, (*shape, 3), dtype=torch.uint8, device=self.device
    )
    self._labels = torch.arange(shape[0], device=self.device) % IDENTITIES
    self._batch, self._mixed = batch, mixed

  def __call__(self) -> tuple[int, float]:
    """Returns (number of images, seconds) of a round."""
    start, seen = time.perf_counter(), 0
    for model in self._models:
      self._shared.load_state_dict(model.state_dict())
      seen += train(
        self._step, self._images, self._labels, self._batch, self._mixed
      )
      model.load_state_dict(self._shared.state_dict())
    average(self._models)
    if self.device.type == 'cuda':
      torch.cuda.synchronize()
    return seen, time.perf_counter() - start


def measure(options: argparse.Namespace) -> dict[str, float | str]:
  """Returns the figures of rounds of equal clients."""
  torch.backends.cuda.matmul.allow_tf32 = True
  torch.backends.cudnn.allow_tf32 = True
  torch.backends.cudnn.benchmark = True
  shape = options.images, options.height, options.width_px
  rounds = Rounds(
    options.model,
    1.0,
    shape,
    options.clients,
    options.batch,
    options.dtype == 'bfloat16',
    options.compile,
  )
  found = [rounds() for _ in range(1 + options.rounds)]
  seconds, device = [s for _, s in found], rounds.device
  took, seen = statistics.median(seconds[1:]), found[-1][0]
  return {
    'speed': seen / took,
    'memory': _peak(device) / 2**20,
    'compile': seconds[0] - took,
    'device': _name(device),
    'torch': torch.__version__,
  }


def _peak(device) -> int:
  return torch.cuda.max_memory_allocated() if device.type == 'cuda' else 0


def _name(device) -> str:
  return torch.cuda.get_device_name() if device.type == 'cuda' else 'cpu'


def main() -> None:
  """Prints the figures."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--dtype', default='bfloat16')
  parser.add_argument('--model', default='resnet50')
  parser.add_argument(
    '--compile', action=argparse.BooleanOptionalAction, default=True
  )
  for name in ('height', 'width_px', 'batch', 'images', 'clients', 'rounds'):
    parser.add_argument(f'--{name}', type=int, required=True)
  print(json.dumps(measure(parser.parse_args())))


if __name__ == '__main__':
  main()
