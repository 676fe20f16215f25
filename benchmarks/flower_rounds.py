"""Rounds of Flower's simulation, a contender of `benchmarks.thousand_clients`.

The clients run in processes of Ray, which import this module.
"""

import functools
import time

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from flwr.app import (  # pyright: ignore
  ArrayRecord,
  Message,
  MetricRecord,
  RecordDict,
)
from flwr.clientapp import ClientApp  # pyright: ignore
from flwr.serverapp import ServerApp  # pyright: ignore
from flwr.simulation import run_simulation  # pyright: ignore

from benchmarks import small_work


@functools.cache
def kept(count: int, seed: int):
  """Returns (clients, network) of a process that trains many clients."""
  torch.set_num_threads(1)  # a process for each core
  return small_work.torch_clients(count), small_work.torch_model(seed)


def run(turn: small_work.Turn, count: int, size: int, seed: int) -> None:
  """Runs rounds of `size` of `count` clients."""
  server, client = ServerApp(), ClientApp()

  @client.train()  # pyright: ignore
  def train(message, context):
    from benchmarks import flower_rounds

    data, network = flower_rounds.kept(count, seed)
    network.load_state_dict(message.content['model'].to_torch_state_dict())
    pixels, labels = data[int(context.node_config['partition-id'])]
    optimizer = torch.optim.SGD(network.parameters(), lr=small_work.RATE)
    for rows in torch.randperm(len(labels)).view(-1, small_work.BATCH):
      optimizer.zero_grad()
      network.loss(pixels[rows], labels[rows]).backward()
      optimizer.step()
    facts = {'images': len(labels), 'loss': network.mean_loss()}
    content = RecordDict(
      {
        'model': ArrayRecord(network.state_dict()),
        'facts': MetricRecord(facts),
      }
    )
    return Message(content, reply_to=message)

  @server.main()  # pyright: ignore
  def rounds(grid, context):
    del context
    rng = np.random.default_rng(seed)
    model = small_work.torch_model(seed).state_dict()
    while True:
      nodes = [*grid.get_node_ids()]
      if len(nodes) < count:  # they connect one after another
        time.sleep(0.1)
        continue
      drawn = rng.permutation(len(nodes))[:size]
      replies = grid.send_and_receive(
        [
          Message(
            RecordDict({'model': ArrayRecord(model)}),
            dst_node_id=nodes[k],
            message_type='train',
          )
          for k in drawn
        ]
      )
      facts = [reply.content['facts'] for reply in replies]
      sizes = np.asarray([one['images'] for one in facts], float)
      states = [
        reply.content['model'].to_torch_state_dict() for reply in replies
      ]
      for name, value in model.items():
        if value.is_floating_point():
          model[name] = sum(
            share * state[name]
            for share, state in zip(sizes / sizes.sum(), states, strict=True)
          )
      losses = np.asarray([one['loss'] for one in facts])
      turn.done(float((losses * sizes).sum() / sizes.sum()))

  run_simulation(
    server,
    client,
    count,
    backend_config={'client_resources': {'num_cpus': 1, 'num_gpus': 0.0}},
  )
