"""`examples/real_data.sh` on miniatures in the real layouts."""

import functools
import json
import shutil
from pathlib import Path

import commands
import jax
import pytest

from fedreid_jax.apps.papers.tables import declare, index
from fedreid_jax.config import recipes, validation
from fedreid_jax.data import miniatures
from fedreid_jax.models import networks, weights

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / 'examples' / 'real_data.sh'
# Writes its arguments to a file, and finds no data set that is in MISSING.
RECORDER = """#!/usr/bin/env bash
printf '%s\\t' "$@" >> "$CALLS"; echo >> "$CALLS"
for word in "$@"; do
  if [[ $word == --workdir=* ]]; then mkdir -p "${word#*=}"; fi
done
for word in $MISSING; do
  if [[ "$*" == *"doctor --dataset=$word"* ]]; then
    echo "error[3]: no $word" >&2; exit 3
  fi
done
"""
NETWORK = ('model.name=convnet', 'model.features=(4,8)')
SMALL = (
  *NETWORK,
  *('data.height=32', 'data.width=16', 'rounds=1', 'evaluation.every=1'),
  *('local.steps=1', 'local.batch=4', 'local.identities=2'),
)


@pytest.fixture
def script(tmp_path):
  """`(*arguments, program, **variables)` runs the script."""
  return functools.partial(commands.launch_script, SCRIPT, tmp_path)


@pytest.fixture
def weight_file(tmp_path):
  config = validation.validate(
    recipes.recipe(f'configs/dfh.py:{",".join(NETWORK)}', 'paper')
  )
  network = networks.wrap(networks.build(config.model, 4), (32, 16, 3))
  path = tmp_path / 'own.safetensors'
  variables = network.init(jax.random.key(0))
  weights.save(path, variables, {'form': weights.OWN})
  return path


def tables(work):
  """The rows of all tables below a folder, as dicts, by path."""
  found = {}
  for path in sorted((work / 'runs').rglob('*.md')):
    lines = [x for x in path.read_text().splitlines() if x.startswith('|')]
    names, _, *rows = ([c.strip() for c in x.split('|')] for x in lines)
    name = path.relative_to(work / 'runs').as_posix()
    found[name] = [dict(zip(names, row, strict=True)) for row in rows]
  return found


@pytest.mark.slow
def test_the_script_on_two_data_sets(script, weight_file, tmp_path):
  # Fourteen persons, so that each of six clients by identity has one.
  pictures = miniatures.render(14, height=32, width=16)
  for name in ('market1501', 'msmt17'):
    miniatures.write(name, tmp_path / 'root' / name, pictures)
  work = tmp_path / 'work'
  code, out, err = script(tmp_path / 'root', work, *SMALL, WEIGHTS=weight_file)
  assert code == 0, out + err
  assert 'without cuhk03: error[3]: CUHK03, classic protocol: no' in out
  assert 'left out for lack of cuhk02 (CUHK02: no folder P1/cam1)' in out
  found = tables(work)
  alone, cameras, parts = (
    next(rows for path, rows in found.items() if path.startswith(start))
    for start in ('dfh/table1', 'by_camera/', 'fedreidbench_journal/table2')
  )
  (row,) = alone
  assert (row['mAP published'], row['rank1 published']) == ('23.30', '47.50')
  methods = {row['label'] for row in cameras if row['target'] == 'market1501'}
  assert methods == {
    'dfh components=("fedpav",)',
    'dfh components=("fedpav","dfh")',
  }
  published = {
    (row['label'], row['mAP published'])
    for row in parts
    if row['kind'] == 'best_three'
  }
  assert published == {('by_identity', '66.36'), ('by_camera', '36.57')}
  results = sorted((work / 'runs').rglob('results.json'))
  assert len(results) == 5
  for path in results:
    config = json.loads((path.parent / 'config.json').read_text())
    assert config['model']['pretrained'] == str(weight_file)
    assert config['data']['root'] == str(work / 'data')


@pytest.mark.slow
def test_a_missing_data_set_is_one_line(script, minis, weight_file, tmp_path):
  shutil.copytree(minis('market1501'), tmp_path / 'root' / 'market1501')
  code, out, err = script(
    tmp_path / 'root', tmp_path / 'work', WEIGHTS=weight_file
  )
  assert code == 3 and 'Market-1501: found / published' in out
  assert len(err.splitlines()) == 1
  assert err.startswith('error[3]: MSMT17: neither train and test nor')
  assert not (tmp_path / 'work').exists()


@pytest.mark.parametrize(
  'arguments, message',
  [
    ((), 'usage: WEIGHTS=FILE real_data.sh ROOT WORKDIR'),
    (('root', 'work'), "error[2]: no file WEIGHTS='none.pth'"),
    (('root', 'work', 'rounds'), 'error[2]: rounds is no FIELD=VALUE'),
  ],
)
def test_mistakes_are_one_line(script, arguments, message):
  code, out, err = script(*arguments, program='exit 1', WEIGHTS='none.pth')
  assert (code, out) == (2, '')
  assert err.startswith(message) and len(err.splitlines()) == 1


DFH = ['dfh/table1', 'dfh/table3', 'fedreidbench_journal/table2']
PROTOCOLS = ['feddg/protocol1', 'feddg/protocol2']


def test_a_missing_transformer_is_one_line(script, weight_file):
  code, _, err = script(
    *('root', 'work'), program='exit 1', WEIGHTS=weight_file, VIT_WEIGHTS='no'
  )
  assert code == 2 and err.startswith("error[2]: no file VIT_WEIGHTS='no'")


@pytest.mark.parametrize(
  'missing, transformer, last',
  [
    (
      *('cuhk02 cuhk03', ''),
      ['dfh/table1', 'sweep', 'fedreidbench_journal/table2'],
    ),
    ('cuhk02', '', DFH),
    ('', '', DFH),
    ('', 'a vit.pth', [*DFH, *PROTOCOLS]),
  ],
)
def test_the_commands_follow_from_the_data_sets(
  script, tmp_path, missing, transformer, last
):
  weight_file, calls = tmp_path / 'a b.pth', tmp_path / 'calls'
  weight_file.touch()
  vit = tmp_path / transformer if transformer else ''
  if vit:
    vit.touch()
  found = []
  for _ in range(2):  # the same command resumes
    calls.write_text('')
    code, out, err = script(
      *('root', tmp_path / 'w x', 'model.dtype=bfloat16'),
      program=RECORDER,
      **{'WEIGHTS': weight_file, 'CALLS': calls, 'MISSING': missing},
      **{'SEEDS': '0,1', 'VIT_WEIGHTS': vit},
    )
    assert (code, err) == (0, ''), out + err
    found.append(calls.read_text())
  assert found[0] == found[1]
  words = [line.split('\t')[:-1] for line in found[0].splitlines()]
  work = tmp_path / 'w x'
  assert ['import-weights', str(weight_file)] in [x[:2] for x in words]
  prepared = [x[2] for x in words if x[:2] == ['data', 'prepare']]
  names = ['market1501', 'msmt17', 'cuhk03:query=last', 'cuhk02']
  names += ['cuhk03-np:boxes=labeled'] * bool(vit)
  assert prepared == [
    f'--dataset={name}'
    for name in names
    if name.partition(':')[0] not in missing.split()
  ]
  runs = [x for x in words if x[0] in ('table', 'sweep')]
  flags = [
    dict(w.split('=', 1) for w in x if w[:2] == '--' and '=' in w) for x in runs
  ]
  assert [f.get('--table', 'sweep') for f in flags] == last
  for run, flag in zip(runs, flags, strict=True):
    assert flag['--seeds'] == '0,1'
    file = 'a vit' if flag.get('--table') in PROTOCOLS else 'a b'
    fields = [
      f"model.pretrained='{work}/{file}.safetensors'",
      'model.dtype=bfloat16',
    ]
    if run[0] == 'sweep':
      assert {f'--config.{field}' for field in fields} < {*run}
      recipe, _, preset = run[1].partition(':')
      config = recipes.recipe(recipe, preset)
      assert config.data.client_split == 'by_camera'
    else:
      assert {f'--set={field}' for field in fields} < {*run}
      table = index.TABLES[flag['--table']]
      assert declare.chosen(table, flag['--only'])
