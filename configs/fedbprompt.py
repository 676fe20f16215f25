r"""FedBPrompt (CVPR 2026): prompts of a transformer for parts of the body.

BAPM trains a transformer whose prompts attend to a part of the image each. PFTS
starts from the run of a transformer, with such prompts or without, and trains
and sends prompts alone; identity classifiers go on at the clients. Both are
fields of the network, so that other methods are added as components.

  fedreid train fedbprompt[:smoke] --workdir=DIR
  fedreid train fedbprompt:smoke,trains=prompts,start_from=DIR
  fedreid train fedbprompt+dacs:smoke
  fedreid train fedbprompt:paper,data.root=DIR \
    --config.model.pretrained=vit_base_patch16_224.safetensors

`paper` is the setting of the released code with the third of its protocols,
whose target is Market-1501. docs/methods/fedbprompt.md has the equations.
"""

from fedreid_jax.config import parsing, presets

TRAINS = ('all', 'prompts')


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,trains=prompts][,key=value...]`."""
  given = parsing.argument(
    arg,
    presets.GENERALISED | {'paper': _paper},
    trains=TRAINS,
    space=parsing.choices('dfh.space'),
  )
  c = presets.with_triplet('fedbprompt', ('fedpav',), given)
  c.optim.lr_multipliers = (('params/classifier/', 2.0),)
  c.model.name = 'vit'
  if c.vit.size == 'tiny':
    _small(c)
  if given.options['trains'] == 'prompts':
    c.model.trained = '.*prompt'
  return given.override(c)


def _small(c) -> None:
  """Sets a small transformer and few prompts, as the images are small."""
  c.vit.part_prompts = (2, 2, 2, 4)
  # A triplet loss collapses a transformer without weights.
  if c.data.channels == 'rgb' and c.data.height > 32:
    c.model.pretrained = 'vit-synthetic'
    c.data.height, c.data.width = 64, 32  # as the images of the weights
    c.optim.lr = 0.02


def _paper(c) -> None:
  """Sets the released code's transformer on three data sets."""
  presets.three_data_sets(c)
  c.vit.size, c.vit.stride = 'b16', 12
  c.vit.part_prompts = (10, 10, 10, 20)
  c.local.batch, c.local.identities = 16, 4
  c.rounds, c.evaluation.every = 101, 10
