"""FedPav (FedReIDBench, ACM MM 2020 and its journal version, Algorithm 1).

Cross-entropy; everything but the classifier is averaged by number of images.
Every recipe of the federated family starts from here.

  python -m launchers.main --config=configs/fedpav.py[:smoke|nine]
  python -m launchers.main --config=configs/fedpav.py:folder,data.root=DIR
  python -m launchers.main --config=configs/fedpav.py:paper,data.root=DIR \
    --config.model.pretrained=resnet50.safetensors

`paper` is the published setting of the nine data sets (journal version, section
3.5 and table 3, figures 2 and 4): ResNet-50 with a bottleneck of 512, batches
of 32, one local epoch, 300 rounds, rate 0.05 (backbone a tenth), constant.
Published rank-1 of the global / local model (journal version, table 3; the
conference's tables 3 to 8 are in `fedreid_jax/config/tables/fedreidbench.py`):
MSMT17 41.0 / 48.3, DukeMTMC 74.3 / 78.1, Market-1501 83.4 / 83.6, CUHK03-NP
31.7 / 39.5, PRID2011 37.7 / 50.7, CUHK01 73.4 / 80.7, VIPeR 48.1 / 52.0,
3DPeS 69.2 / 80.6, i-LIDS 79.9 / 84.7. Figures measured here: docs/results.md.
"""

from fedreid_jax.config import parsing, schema


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  return parsing.recipe(arg, base('fedpav', ('fedpav',)), PRESETS)


def base(name: str, components: tuple[str, ...]):
  """Returns a recipe of the family before its presets.

  Args:
    name: of the recipe.
    components: of the method.
  """
  config = schema.default()
  config.name = name
  config.components = components
  return config


def nine(c) -> None:
  """The nine synthetic clients; local models are evaluated too."""
  schema.nine(c)
  if 'standalone' not in c.components and c.data.client_split != 'centralised':
    c.components = (*c.components, 'local_models')


def paper(c) -> None:
  """The published setting: nine data sets, each client and target."""
  c.data.source = 'datasets'
  c.data.sources = (
    'msmt17',
    'dukemtmc',
    'market1501',
    'cuhk03-np',
    'prid2011:split=half',
    'cuhk01:split=half',
    'viper:split=half',
    '3dpes:split=half',
    'qmul-ilids:split=half',
  )
  c.data.targets = c.data.sources
  c.data.allow_overlap = True  # other persons of the same data sets
  c.data.height, c.data.width = 256, 128
  c.model.name, c.model.last_stride = 'resnet50', 2
  c.model.neck, c.model.classifier_bias = 'bottleneck', True
  c.rounds, c.evaluation.every = 300, 10
  c.optim.lr_multipliers = (('params/backbone/', 0.1),)
  c.augment.pad = 10
  c.evaluation.protocol = 'fedreid_legacy'
  c.evaluation.metric, c.evaluation.flip = 'cosine', True
  if 'standalone' not in c.components and c.data.client_split != 'centralised':
    c.components = (*c.components, 'local_models')


def _public(preset, name: str):
  def change(c) -> None:
    preset(c)
    c.data.public = name

  return change


PRESETS = {
  'synthetic': schema.synthetic,
  'smoke': schema.smoke,
  'folder': schema.folder,
  'nine': nine,
  'paper': paper,
}
# Of methods that need images everybody may see.
WITH_PUBLIC = PRESETS | {
  'synthetic': _public(schema.synthetic, 'park'),
  'smoke': _public(schema.smoke, 'park'),
  'nine': _public(nine, 'depot:identities=24,shots=2'),
  'paper': _public(paper, 'cuhk02:split=public'),
}
