"""Effect of the moments of batch normalisation on a visible-infrared run.

A saved model is evaluated with its running moments, with those of all images of
the clients and with those of the images of each modality
(`evaluation.batch_stats`). For every target with both modalities the report has
the mAP and the distance between the modalities (`evaluators.modality_gap`).
"""

from pathlib import Path
from typing import Any

import jax

from fedreid_jax import errors
from fedreid_jax.config import parsing
from fedreid_jax.training import evaluation
from fedreid_jax.training.files import recorder

RULES = parsing.choices('evaluation.batch_stats')
GAP = ('offset', 'rest', 'persons')
COLUMNS = ('target', 'model', 'moments', 'mAP', *GAP)


def report(
  config, workdir: Path, which: str, verbose: bool = False
) -> list[dict[str, Any]]:
  """Writes `modality-gap-STEP.json` and returns its rows.

  Args:
    config: validated `ConfigDict`; its targets are ranked.
    workdir: of a run.
    which: checkpoint: 'latest', 'best' or a step.
    verbose: print the rows as a table.

  Raises:
    ConfigError: when the clients or the targets have one modality only.
    IntegrityError: when there is no such checkpoint, or it does not verify or
      fit the model.
  """
  config, found = evaluation.restore(config, workdir, which)
  config.evaluation.extra = ('modality_gap',)
  rows: list[dict[str, Any]] = []
  for rule in RULES:
    config.evaluation.batch_stats = rule
    entries = evaluation.evaluate_models(
      config, found.models, found.groups, found.host['clients']
    )
    for entry in entries:
      metrics = entry['metrics']
      if 'gap_offset' in metrics:
        names = {k: entry[k] for k in ('target', 'model')}
        score = {'moments': rule, 'mAP': metrics['mAP']}
        gap = {name: metrics[f'gap_{name}'] for name in GAP}
        rows.append(names | score | gap)
    if not rows:
      raise errors.ConfigError(
        'no target has persons with images of both modalities',
        'data.targets',
        'give a target with visible and infrared images',
      )
  rows.sort(key=lambda row: (row['target'], row['model']))
  if jax.process_index() == 0:
    recorder.write_json(workdir / f'modality-gap-{found.step}.json', rows)
  record = recorder.Recorder(workdir, config.rounds, verbose)
  record.table(
    'distance between modalities, in spreads of persons',
    list(COLUMNS),
    [[_shown(row[column]) for column in COLUMNS] for row in rows],
  )
  return rows


def _shown(value: Any) -> str:
  return f'{value:.2f}' if isinstance(value, float) else str(value)
