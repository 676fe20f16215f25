"""A claim of smoke presets, and the files of its runs."""

import json

import numpy as np

from fedreid_jax.apps.papers.tables.declare import Arm, Claim, route

CLAIM = Claim(
  'dfh',
  'a paper, table 1',
  'DFH improves FedPav.',
  '+9',
  Arm('dfh:smoke'),
  Arm('dfh:smoke,components=("fedpav",)'),
  (route('plaza campus', 'mall park'),),
)


def save(cell, **precision):
  """Writes the files of a finished run; a key is MODEL__TARGET."""
  cell.workdir.mkdir(parents=True)
  arrays = {f'{k.replace("__", "/")}/0': v for k, v in precision.items()}
  np.savez(cell.workdir / 'queries.npz', **arrays)
  done = {'rounds': cell.config.rounds, 'summary': []}
  (cell.workdir / 'results.json').write_text(json.dumps(done))
