"""FedReID (Wu & Gong, AAAI 2021): a local expert teaches each client.

Heads are personal, embeddings are averaged uniformly, and the expert starts
from the client's own last model. The variants of `variant=` are:

  distilled    variant of the paper (default)
  plain        without the expert
  supervised   local training with the frozen model of a finished run:
               synthetic,variant=supervised,start_from=WORKDIR; the table
               fedreid/table6 runs the federation and then this variant

  fedreid train fedreid[:smoke|nine]
  fedreid train fedreid:photos,data.root=DIR
  fedreid train fedreid:synthetic,noise=single
  fedreid train fedreid:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

`noise=single|double` adds white noise of `noise.beta` to the model (figure 3).
It gives no (epsilon, delta) guarantee of differential privacy.

As in the authors' code, `paper` enlarges half of the images by an eighth and
crops them, and has the trapezoidal average precision.

Published rank-1 / mAP of table 3, from DukeMTMC, Market-1501, CUHK03 and
MSMT17: VIPeR 46.2 rank-1, iLIDS 69.7.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,variant=...][,noise=...][,...]`."""
  given = parsing.argument(
    arg,
    {**presets.FEDERATED, 'paper': _paper},
    variant=('distilled', 'plain', 'supervised'),
    noise=('none', 'single', 'double'),
  )
  variant, noise = given.options['variant'], given.options['noise']
  components = {
    'distilled': ('fedpav', 'uniform', 'local_expert'),
    'plain': ('fedpav', 'uniform'),
    'supervised': ('standalone', 'local_expert'),
  }[variant]
  if noise != 'none':
    components = (*components, 'noise')
  c = presets.base('fedreid', components)
  c.local_expert.frozen = variant == 'supervised'
  given.apply_preset(c)
  # The whole mapping network is a head and personal.
  c.fedpav.shared = r'(?!\w+/neck/|params/(.+/)?classifier/)'
  c.model.neck = 'mapping'
  c.model.bottleneck = 512 if given.preset == 'paper' else 128
  c.evaluation.feature = 'feature'
  c.optim.reset_each_round = variant != 'supervised'
  c.noise.double = noise == 'double'
  return given.override(c)


def _paper(c):
  """The published setting: four data sets in, five small ones tested."""
  c.data.source = 'datasets'
  c.data.sources = ('dukemtmc', 'market1501', 'cuhk03-np', 'msmt17:val=drop')
  c.data.targets = ('viper', 'qmul-ilids', '3dpes', 'caviar4reid', 'grid')
  c.data.height, c.data.width = 256, 128
  c.model.name, c.model.last_stride = 'resnet50', 2
  c.model.classifier_bias = True
  if c.local_expert.frozen:  # a client is tested on its own data set
    c.data.targets, c.data.allow_overlap = c.data.sources, True
  c.rounds, c.evaluation.every = 100, 10
  c.optim.lr, c.optim.lr_multipliers = 0.1, (('params/backbone/', 0.1),)
  c.optim.schedule, c.optim.milestones = 'step', (40, 80)
  c.augment.pad, c.augment.enlarge = 0, 0.5
  c.evaluation.flip, c.evaluation.precision = True, 'trapezoid'
