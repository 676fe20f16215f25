"""DFH: federated domain generalisation by feature hallucination.

Local loss: cross-entropy and hard triplet of margin 0.5 on the pooled feature
(`space=b`: on its normalisation, which the network then ranks), plus the
triplet loss on hallucinated features with weight 5. SGD, momentum 0.9, weight
decay 5e-4, PK batches, statistics shared after every round.

  python -m launchers.main --config=configs/dfh.py[:smoke]
  python -m launchers.main --config=configs/dfh.py:synthetic,space=b
  python -m launchers.main --config=configs/dfh.py:folder,data.root=DIR
  python -m launchers.main --config=configs/dfh.py:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

Published, mAP / rank-1 (DFH table 1): on Market-1501 from MSMT17, CUHK02 and
CUHK03 31.3 / 56.5 (FedPav 25.4 / 49.4); on CUHK02 71.7 / 69.5 (62.6 / 59.8); on
CUHK03 27.2 / 30.5 (22.5 / 24.3). What was measured here is in docs/results.md.
"""

from fedreid_jax.config import parsing, schema


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,space=b][,key=value...]`."""
  arg, space = parsing.take_argument(arg, 'space', 'f')
  return parsing.recipe(arg, base(space), PRESETS)


def base(space: str):
  """Returns the recipe before its presets.

  Args:
    space: of all losses, statistics and retrieval: 'f', the pooled feature of a
      network without a neck, or 'b', the normalised one.
  """
  config = schema.default()
  config.name = 'dfh'
  config.components = ('fedpav', 'dfh')
  config.dfh.space = space
  config.model.neck = 'bn' if space == 'b' else 'none'
  config.loss.triplet = 1.0
  config.local.sampler = 'pk'
  config.local.batch, config.local.identities = 32, 8
  config.optim.nesterov = False
  return config


def paper(c) -> None:
  """DFH's published setting: three data sets in, Market-1501 out (table 1).

  The other rows: targets 'cuhk02' and 'cuhk03' with the rest as sources.
  """
  c.data.source = 'datasets'
  c.data.sources = ('msmt17', 'cuhk02', 'cuhk03')
  c.data.targets = ('market1501',)
  c.data.height, c.data.width = 256, 128
  c.model.name = 'resnet50'
  c.rounds = 40
  c.local.batch, c.local.identities, c.local.steps = 64, 16, 200
  c.optim.lr = 1e-3
  c.optim.schedule, c.optim.milestones, c.optim.gamma = 'step', (20, 30), 0.5
  c.augment.pad, c.augment.erase = 10, 0.5
  c.augment.erase_fill = (0.485, 0.456, 0.406)
  c.augment.erase_tries = 100


PRESETS = {
  'synthetic': schema.synthetic,
  'smoke': schema.smoke,
  'folder': schema.folder,
  'nine': schema.nine,
  'paper': paper,
}
