"""Protocols 1 and 2 of domain generalisation with transformers, 2024 to 2026.

  fedreid table feddg/protocol1 --preset=paper --root=DIR \\
    --set=model.pretrained=vit_b16.safetensors

Three of CUHK02 (C2), CUHK03 (C3, new protocol, labelled boxes), Market-1501 (M)
and MSMT17 version 1 (MS) are clients. Protocol 1 tests on the fourth, and
protocol 2 on the standard tests of the three. A run is tested on all four, and
the tables show the targets of their protocol, so that they share their runs.
The setting is that of SSCU (Xu et al., MM 2025) and FedBPrompt (Xu et al., CVPR
2026), as the released code of the latter has it.
"""

from fedreid_jax.apps.papers.tables.declare import ALL, Row, Table, read

# Of all recipes; the class token after the last normalisation is the feature.
SETTING = {
  ALL: tuple(
    """
    model.neck=none evaluation.feature=embedding loss.triplet=1.0
    loss.margin=0.5 local.sampler=pk optim.nesterov=False
    optim.reset_each_round=True model.name=vit data.allow_overlap=True
    """.split()
  ),
  'smoke': ('local.batch=8', 'local.identities=4'),
  # From weights of rendered persons, see `presets.from_rendered`.
  'synthetic': (
    *('model.pretrained=vit-synthetic', 'optim.lr=0.05'),
    *('local.batch=32', 'local.identities=8'),
    'evaluation.validation=0.0',
  ),
  'paper': tuple(
    """
    data.source=datasets data.public="" data.height=256 data.width=128
    vit.size=b16 vit.stride=12 vit.drop_path=0.1 model.classifier_bias=False
    rounds=101 local.batch=16 local.identities=4 local.steps=200
    optim.name=sgd optim.lr=1e-3 optim.momentum=0.9 optim.weight_decay=5e-4
    optim.lr_multipliers=(("params/(.+/)?classifier/",2.0),)
    optim.schedule=step optim.milestones=(20,30) optim.gamma=0.5
    augment.flip=0.5 augment.pad=10 augment.erase=0.5 augment.erase_tries=100
    augment.erase_fill=(0.485,0.456,0.406)
    evaluation.every=10 evaluation.protocol="" evaluation.metric=euclidean
    evaluation.flip=False
    """.split()
  ),
}
# Data set and its rendered stand-in.
DATA = {
  'C2': ('cuhk02', 'campus'),
  'C3': ('cuhk03-np:boxes=labeled', 'mall'),
  'M': ('market1501', 'plaza'),
  'MS': ('msmt17', 'station'),
}
ROUTES = ('MS+C2+C3 -> M', 'MS+C2+M -> C3', 'C2+C3+M -> MS')
# The only stage of a transformer is its map of patches.
METHODS: dict[str, tuple[str, ...]] = {  # recipe and its changes, by label
  'FedPav': ('fedpav', 'components=("fedpav",)'),
  'MixStyle': ('mixstyle', 'mixstyle.stages=(1,)'),
  'CrossStyle': ('crossstyle', 'crossstyle.stages=(1,)'),
  'SNR': ('snr',),
  'DACS': ('dacs', 'dacs.lam=5.0'),
  'SSCU': ('sscu',),
}
# Changes of every method by suffix of its label: prompts of parts of the body,
# trained with the rest, or alone from the run of the method without a suffix.
BAPM, PFTS = ' + BAPM', ' + PFTS'
PARTS = 'vit.part_prompts=(10,10,10,20)'
PROMPTS: dict[str, tuple[str, ...]] = {
  '': (),
  BAPM: (PARTS,),
  PFTS: (PARTS, 'model.trained=.*prompt'),
}
METRICS = ('mAP', 'rank1')
# By route in the order of `ROUTES`.
PUBLISHED = """
  SSCU         46.3 69.6  33.7 33.4  20.0 43.7
  SSCU + PFTS  48.9 72.4  35.5 35.8  21.3 46.0
  SSCU + BAPM  49.1 73.4  37.4 38.4  23.4 49.5
"""
NOTE = (
  'Published numbers are those that the repository of FedBPrompt prints; those '
  'of other rows could not be read. The released code keeps the round with the '
  'best mAP on the target; this is the last round. SNR has one module, after '
  'the positions of the patches, and three after blocks in the released code.'
)


def _row(
  method: str, prompts: str, route: str, own: bool, scores: dict[str, float]
) -> Row:
  sources, target = (part.split('+') for part in route.split(' -> '))
  recipe, *pairs = METHODS[method]
  domains = {  # those of the clients, then those that are tested
    preset: (
      tuple(DATA[name][k] for name in sources),
      tuple(DATA[name][k] for name in (*target, *sources)),
    )
    for k, preset in enumerate(('paper', 'synthetic'))
  }
  shown = sources if own else target
  return Row(
    f'{method}{prompts}, {route}',
    f'configs/{recipe}.py',
    {ALL: (*pairs, *PROMPTS[prompts])}
    | {
      preset: (f'data.sources={clients!r}', f'data.targets={tests!r}')
      for preset, (clients, tests) in domains.items()
    },
    {DATA[target[0]][0].partition(':')[0]: scores} if scores else {},
    starts_from=f'{method}, {route}' if prompts == PFTS else '',
    shown={
      preset: [DATA[name][k].partition(':')[0] for name in shown]
      for k, preset in enumerate(('paper', 'synthetic'))
    },
  )


def _rows(own: bool) -> list[Row]:
  """The rows of a protocol; `own` tests the domains of the clients."""
  columns = [f'{route}{metric}' for route in ROUTES for metric in METRICS]
  published = {} if own else read(PUBLISHED, columns)
  found = []
  for method in METHODS:
    for prompts in PROMPTS:
      numbers = published.get(f'{method}{prompts}', {})
      for route in ROUTES:
        scores = {
          metric: numbers[f'{route}{metric}'] for metric in METRICS if numbers
        }
        found.append(_row(method, prompts, route, own, scores))
  return found


def _table(number: int, title: str, own: bool) -> Table:
  return Table(
    f'feddg/protocol{number}',
    title,
    _rows(own),
    SETTING,
    # Real training on rendered domains: of weights that know persons.
    presets={'synthetic': 'rendered'},
    note=NOTE,
  )


TABLES = (
  _table(1, 'domains that no client has', own=False),
  _table(2, "the clients' own domains", own=True),
)
CLAIMS = ()
