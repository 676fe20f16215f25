"""Clients and rows that the tables of both FedReIDBench papers share."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedreid_jax.apps.papers.tables.declare import ALL, Row, Table

# Targets in the papers' order. The papers write iLIDS-VID, but their counts of
# images are those of QMUL i-LIDS.
SETS = (
  'msmt17',
  'dukemtmc',
  'market1501',
  'cuhk03-np',
  'prid2011',
  'cuhk01',
  'viper',
  '3dpes',
  'qmul-ilids',
)
METRICS = ('rank1', 'rank5', 'rank10', 'mAP')
# Of the presets of the recipes, `paper` and `nine` have the nine clients.
PRESETS = {'synthetic': 'nine', 'smoke': 'nine'}
# Changes that reduce the preset `nine` to the size of `smoke`.
SMOKE = (
  'rounds=2',
  'data.height=32',
  'data.width=16',
  'data.target_identities=12',
  'model.features=(16, 32)',
  'evaluation.every=2',
)

Scores = Mapping[str, Mapping[str, float]]


def nine(id: str, title: str, rows: Sequence[Row], **more: Any) -> Table:
  """Returns a table of the nine clients; `more` are fields of `Table`."""
  more = {'kind': 'best_three', 'presets': PRESETS} | more
  return Table(id, title, rows, {'smoke': SMOKE}, **more)


def row(
  label: str, recipe: str, published: Scores | None = None, *pairs: str, **more
) -> Row:
  """Returns a row; `pairs` are changes, `more` fields of `Row`."""
  return Row(
    label, f'configs/{recipe}.py', {ALL: pairs}, published or {}, **more
  )


def standalone(published: Scores) -> Row:
  """Returns the row of clients that train alone."""
  return row('Standalone', 'standalone', published, model='local')


# A control that the papers do not have: public images update the running
# statistics of the server's model, but not its weights.
KD_CONTROL = row('KD, rate 0', 'fedpav_kd', None, 'kd.lr=0.0')


def one_set(id: str, scored: Mapping[str, Scores]) -> Table:
  """Returns the table of one data set, split over clients or centralised.

  Args:
    id: identifier of the table.
    scored: published numbers by target, client split and metric.
  """
  # With as many cameras as the data set, and so as many clients by camera.
  stand_in = {'market1501': 'station:cameras=6', 'cuhk03-np': 'mall:cameras=2'}
  rows = []
  for target, scenarios in scored.items():
    domains = {'paper': (target,), 'synthetic': (stand_in[target],)}
    own = {
      preset: (f'data.sources={name!r}', f'data.targets={name!r}')
      for preset, name in domains.items()
    }
    for scenario, scores in scenarios.items():
      recipe = 'centralised' if scenario == 'centralised' else 'fedpav'
      rows.append(
        Row(
          scenario,
          f'configs/{recipe}.py',
          {ALL: (f'data.client_split={scenario}',), **own},
          {target: scores},
        )
      )
  # Clients and tests are other persons of the same domain.
  other = 'data.allow_overlap=True'
  return Table(
    id,
    'one data set by camera, by identity, in one place',
    rows,
    {ALL: (other, 'components=("fedpav",)')},
    kind='best_three',
  )
