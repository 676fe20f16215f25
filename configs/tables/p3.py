"""L2RW, visible-infrared without sharing: tables 1 to 3 and figure 4.

  python -m launchers.table --table=p3/table1 --preset=paper --root=DIR

Infrared images ask for visible ones; ten galleries, and on RegDB ten splits,
each with a model of its own (table 1).
"""

from collections.abc import Sequence

from configs.sweeps import p3_lambda_k
from configs.tables.declare import ALL, Row, Table, of_sweep, read
from configs.tables.p3_numbers import METRICS, TABLE1, TABLE2, TABLE3

# Data set and the synthetic stand-in: visible and infrared cameras.
DATA = {
  'S': ('sysu-mm01', 'plaza:cameras=4,infrared=2'),
  'R': ('regdb', 'campus:cameras=1,infrared=1'),
  'L': ('llcm', 'station:cameras=3,infrared=3'),
}
TRIALS = tuple(f'regdb:trial={trial}' for trial in range(1, 11))
RECIPES: dict[str, tuple[str, ...]] = {  # and what is changed in it
  'ES B': ('erm.py',),
  'ES LBA': ('lba.py',),
  'ES AGW': ('agw.py',),
  'ES DEEN': ('deen.py',),
  'ES CAJ': ('caj.py',),
  'ES DNS': ('dns.py',),
  'EI B': ('dppt.py:protocol=ei,local=base',),
  'EI B+CA': ('dppt.py:protocol=ei,local=ca',),
  'EI DPPT': ('dppt.py:protocol=ei',),
  'B': ('dppt.py:local=base',),
  'B+CA': ('dppt.py:local=ca',),
  'B+gray': ('dppt.py:local=ca', 'augment.channel_kinds=gray'),
  'B+CA+mrb cos': ('dppt.py',),
  'B+CA+mrb edu': ('dppt.py', 'dppt.loss=edu', 'dppt.norm=False'),
  'B+CA+mrb mixed': ('dppt.py', 'dppt.loss=mixed', 'dppt.norm=False'),
}
OWN = 'data.allow_overlap=True'  # other persons of the same domain


def _recipe(label: str) -> tuple[str, ...]:
  """Returns the recipe of a row of table 1, 'SERVER' or 'SERVER+LOCAL'."""
  server, _, local = label.lower().partition('+')
  return (f'dppt.py:server={server},local={local or "base"}',)


def _by_camera(label: str, data: str, scores, recipe: tuple[str, ...]) -> Row:
  """Returns a row of camera independence (CI): a client a camera."""
  paper, synthetic = DATA[data]
  splits = TRIALS if data == 'R' else (paper,)
  return Row(
    label,
    f'configs/{recipe[0]}',
    {ALL: recipe[1:], 'synthetic': (OWN, *_domains((synthetic,), synthetic))},
    {paper: scores},
    each={'paper': [_domains((split,), split) for split in splits]},
  )


def _domains(sources: Sequence[str], *targets: str) -> tuple[str, ...]:
  return f'data.sources={tuple(sources)!r}', f'data.targets={targets!r}'


def _by_entity(label: str, route: str, scores) -> Row:
  """Returns a row of entities: shared (ES), or independent (EI)."""
  sources, _, target = route.partition(' -> ')
  paper, synthetic = zip(*(DATA[s] for s in sources.split('+')), strict=True)
  recipe, *pairs = RECIPES[label]
  tested = TRIALS if target == 'R' else (DATA[target][0],)
  return Row(
    label,
    f'configs/{recipe}',
    {
      ALL: pairs,
      'paper': _domains(paper, *tested),
      'synthetic': _domains(synthetic, DATA[target][1]),
    },
    {DATA[target][0]: scores},
  )


TABLES = (
  Table(
    'p3/table1',
    'camera independence: a client a camera',
    [
      _by_camera(label, data, scores, _recipe(label))
      for data, text in TABLE1.items()
      for label, scores in read(text, METRICS).items()
    ],
    note='AGW* and DNS* have one stream, as clients of one camera must; what '
    'the paper changed to get them is not printed. The synthetic stand-in for '
    'LLCM has cameras of one modality each, most of LLCM are of both.',
  ),
  Table(
    'p3/table2',
    'entities not seen: shared (ES) and independent (EI)',
    [
      _by_entity(label, route, scores)
      for route, text in TABLE2.items()
      for label, scores in read(text, METRICS).items()
    ],
  ),
  Table(
    'p3/table3',
    'ablation, camera independence, FedAvg',
    [
      _by_camera(label, data, scores, RECIPES[label])
      for data, text in TABLE3.items()
      for label, scores in read(text, ('rank1', 'mAP', 'mINP')).items()
    ],
    note='Memories are scaled to unit length for cos only: edu and mixed '
    'compare lengths, so those rows differ in dppt.norm, too.',
  ),
  Table(
    'p3/figure4',
    'weight and size of the memory',
    of_sweep(
      p3_lambda_k.get_sweep(),
      {
        'paper': _domains(('sysu-mm01',), 'sysu-mm01'),
        'synthetic': (OWN, *_domains(DATA['S'][1:], DATA['S'][1])),
      },
    ),
  ),
)
