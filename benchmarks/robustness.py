"""Robust rules against attacks, or retrieval against bytes of compressed runs.

  python -m benchmarks.robustness OUT --preset=nine
  python -m benchmarks.robustness OUT --preset=omniglot --set=data.root=DIR
  python -m benchmarks.robustness OUT --measure=compression --preset=synthetic

Every cell is a run in a folder of its own under OUT. A program that is started
again reads finished runs, resumes the one that was stopped and continues with
the rest. The columns of the first table are the mean over targets and seeds, ±
the standard deviation over the seeds, of the server model's mAP after the last
round; `backdoor` also has the collision and the evasion of queries with the
trigger (`evaluators.backdoor`), beside those of the same rule without an
attack. OUT/robustness.json or OUT/compression.json has all numbers.

Attackers are a share of the clients, chosen by their names; the rules get their
number as `robust.f`. A rule that does not resist so many is 'refused', as is
`flip` where classifiers are personal; a run that cannot recover has 'diverged'.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from rich import console, table

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.algorithms import byzantine
from fedreid_jax.config import parsing, validation
from fedreid_jax.data import load as data_load
from fedreid_jax.evaluation.evaluators import backdoor

_MEASURE = flags.DEFINE_enum(
  'measure', 'robustness', ['robustness', 'compression'], 'Table to make.'
)
_PRESET = flags.DEFINE_string('preset', 'nine', 'Preset of the recipe fedpav.')
_SET = flags.DEFINE_multi_string('set', [], 'FIELD=VALUE of every run.')
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'Seeds of every cell.')
_SHARE = flags.DEFINE_float('share', 0.23, 'Share of the clients that attack.')
_RULES = flags.DEFINE_list(
  'rules', ['mean', *parsing.choices('robust.rule')], 'Rows of the table.'
)
_ATTACKS = flags.DEFINE_list(
  'attacks',
  [
    *('none', 'sign=10', 'gaussian=100'),
    *parsing.choices('byzantine.kind'),
    *filter(None, parsing.choices('data.poison')),
  ],
  'Columns of the table; KIND=SCALE sets byzantine.scale.',
)

COMPRESSIONS: dict[str, dict[str, Any]] = {
  'none': {},
  'int 8': {'compress.bits': 8},
  'int 4': {'compress.bits': 4},
  'int 2': {'compress.bits': 2},
  'qsgd 8': {'compress.kind': 'qsgd', 'compress.bits': 8},
  'qsgd 4': {'compress.kind': 'qsgd', 'compress.bits': 4},
  'topk 0.1': {'compress.kind': 'topk', 'compress.ratio': 0.1},
  'topk 0.01': {'compress.kind': 'topk', 'compress.ratio': 0.01},
  'topk 0.001': {'compress.kind': 'topk', 'compress.ratio': 0.001},
}

Cell = dict[str, Any]


def configure(preset: str, fields: dict[str, Any], texts: list[str]) -> Any:
  """Returns the configuration of a run.

  Args:
    preset: of the recipe fedpav.
    fields: of the cell, by full name.
    texts: FIELD=VALUE pairs of all cells, set before those of the cell.
  """
  config = fr.load_config(f'fedpav:{preset}')
  parsing.change(config, texts)
  config.update_from_flattened_dict(fields)
  return validation.validate(config)


def attack_fields(
  rule: str, attack: str, names: list[str], components: tuple[str, ...]
) -> dict[str, Any]:
  """Returns the fields of a cell.

  Args:
    rule: 'mean' or a rule of `robust`.
    attack: 'none', a kind of `byzantine`, which may have a scale, or of
      `data.poison`.
    names: of the attackers.
    components: of the method without rule and attack.
  """
  fields: dict[str, Any] = {}
  if rule != 'mean':
    components = (*components, 'robust')
    fields |= {'robust.rule': rule, 'robust.f': len(names)}
  if attack in parsing.choices('data.poison'):
    fields |= {'data.poison': attack, 'data.poisoned': tuple(names)}
  kind, _, scale = attack.partition('=')
  # The authors of the backdoor replace the model by the attackers' one.
  kind = 'scale' if kind == 'backdoor' else kind
  if scale:
    fields['byzantine.scale'] = float(scale)
  if kind in parsing.choices('byzantine.kind'):
    components = (*components, 'byzantine')
    fields |= {'byzantine.kind': kind, 'byzantine.clients': tuple(names)}
  return fields | {'components': components}


def run(config: Any, folder: Path) -> Cell:
  """Trains, resumes or reads a run; returns its mAP and its bytes up."""
  try:
    results = fr.train(config, folder)
  except errors.DivergedError as error:
    return {'ended': 'diverged', 'why': str(error)}
  except errors.ConfigError as error:
    if error.where not in ('robust.f', 'data.poison'):
      raise
    return {'ended': 'refused', 'why': str(error)}
  found = [
    entry['metrics']['mAP']
    for entry in results['summary']
    if entry['kind'] == 'last' and entry['model'] == 'global'
  ]
  return {
    'mAP': float(np.mean(found)),
    'bytes_up': sum(results['communication']['up'].values()),
  }


def measure_trigger(config: Any, folder: Path) -> Cell:
  """Returns the measures of the backdoor, means over the targets of a run."""
  model = fr.load(folder)
  targets = data_load.load(config.data, clients=False).targets
  found = [backdoor.evaluate(model, one) for one in targets]
  return {n: float(np.mean([one[n] for one in found])) for n in found[0]}


def robustness(out: Path) -> dict[str, Cell]:
  """Returns the cells of rules and attacks, `{'RULE ATTACK SEED': cell}`."""
  plain = configure(_PRESET.value, {}, _SET.value)
  federation = data_load.load(plain.data)
  names = byzantine.attackers(
    byzantine.Options(share=_SHARE.value),
    [client.name for client in federation.clients],
  )
  cells: dict[str, Cell] = {}
  for seed in _SEEDS.value:
    for rule in _RULES.value:
      for attack in _ATTACKS.value:
        fields = attack_fields(rule, attack, names, plain.components)
        fields['seed'] = int(seed)
        config = configure(_PRESET.value, fields, _SET.value)
        folder = out / f'{rule}-{attack}-{seed}'
        cell = run(config, folder)
        wanted = attack in ('none', 'backdoor') and 'backdoor' in _ATTACKS.value
        if wanted and 'ended' not in cell:
          cell |= measure_trigger(config, folder)
        cells[f'{rule} {attack} {seed}'] = cell
        _write(out / 'robustness.json', {'attackers': names, 'cells': cells})
  return cells


def compression(out: Path) -> dict[str, Cell]:
  """Returns the cells of compressed runs, `{'NAME SEED': cell}`."""
  plain = configure(_PRESET.value, {}, _SET.value)
  cells: dict[str, Cell] = {}
  for seed in _SEEDS.value:
    for name, fields in COMPRESSIONS.items():
      more = ('compress',) if fields else ()
      own = {'components': (*plain.components, *more), 'seed': int(seed)}
      config = configure(_PRESET.value, fields | own, _SET.value)
      folder = out / f'{name.replace(" ", "-")}-{seed}'
      cells[f'{name} {seed}'] = run(config, folder)
      _write(out / 'compression.json', {'cells': cells})
  return cells


def _write(path: Path, content: Any) -> None:
  path.write_text(json.dumps(content, indent=2) + '\n')


def _mean(cells: dict[str, Cell], name: str, field: str) -> str:
  """Returns a field's mean and deviation over seeds, or why there is none."""
  own = [cells[f'{name} {seed}'] for seed in _SEEDS.value]
  if ended := [cell['ended'] for cell in own if 'ended' in cell]:
    return ended[0]
  found = [cell[field] for cell in own if field in cell]
  if not found:
    return ''
  spread = f' ± {np.std(found, ddof=1):.1f}' if len(found) > 1 else ''
  return f'{np.mean(found):.1f}{spread}'


def _print_robustness(cells: dict[str, Cell]) -> None:
  shown = table.Table(title='mAP of the server model after the last round, %')
  extra = [
    (f'{field} {attack}', attack, field)
    for field in ('collision', 'evasion')
    for attack in ('none', 'backdoor')
    if {'none', 'backdoor'} <= {*_ATTACKS.value}
  ]
  columns = [(attack, attack, 'mAP') for attack in _ATTACKS.value] + extra
  for name in ('rule', *(title for title, _, _ in columns)):
    shown.add_column(name)
  for rule in _RULES.value:
    shown.add_row(
      rule, *(_mean(cells, f'{rule} {a}', field) for _, a, field in columns)
    )
  console.Console(width=200).print(shown)


def _print_compression(cells: dict[str, Cell]) -> None:
  shown = table.Table(title='mAP and bytes sent by all clients')
  for name in ('uploads', 'mAP', 'MB up'):
    shown.add_column(name)
  for name in COMPRESSIONS:
    first = cells[f'{name} {_SEEDS.value[0]}']
    sent = f'{first["bytes_up"] / 1e6:.2f}' if 'bytes_up' in first else ''
    shown.add_row(name, _mean(cells, name, 'mAP'), sent)
  console.Console(width=200).print(shown)


def main(argv: list[str]) -> None:
  """Makes a table."""
  out = Path(argv[1])
  out.mkdir(parents=True, exist_ok=True)
  if _MEASURE.value == 'robustness':
    _print_robustness(robustness(out))
  else:
    _print_compression(compression(out))


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
