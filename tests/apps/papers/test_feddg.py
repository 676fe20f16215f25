"""The protocols of domain generalisation with transformers."""

import csv
import json

import commands
import jax
import pytest

from fedreid_jax.apps.papers import cells
from fedreid_jax.apps.papers.report import Line
from fedreid_jax.apps.papers.tables import declare, feddg
from fedreid_jax.data import miniatures
from fedreid_jax.models import networks, weights

FIRST, SECOND = feddg.TABLES
STACK = {  # of the papers, by group
  'local': {'batch': 16, 'identities': 4, 'steps': 200, 'sampler': 'pk'},
  'augment': {'pad': 10, 'erase': 0.5, 'flip': 0.5, 'jitter': 0.0},
  'loss': {'identity': 1.0, 'triplet': 1.0, 'margin': 0.5},
  'model': {'name': 'vit', 'neck': 'none', 'classifier_bias': False},
  'data': {'height': 256, 'width': 128, 'resample': 'bicubic'},
  'evaluation': {'metric': 'euclidean', 'feature': 'embedding', 'every': 10},
  'optim': {
    **{'name': 'sgd', 'lr': 1e-3, 'momentum': 0.9, 'nesterov': False},
    **{'weight_decay': 5e-4, 'milestones': (20, 30), 'gamma': 0.5},
    **{'schedule': 'step', 'reset_each_round': True},
  },
}


def runs(table, preset='paper'):
  return {row.label: declare.runs(row, table, preset)[0] for row in table.rows}


def test_the_stack_is_that_of_the_papers():
  for label, config in runs(FIRST).items():
    for group, fields in STACK.items():
      found = vars(getattr(config, group))
      if label.startswith('SSCU') and group == 'loss':
        fields = fields | {'identity': 0.0}  # the memory classifies
      assert {name: found[name] for name in fields} == fields
    assert config.augment.erase_fill == config.data.mean
    vit = config.options['vit']
    assert (vit.size, vit.stride, config.rounds) == ('b16', 12, 101)
    assert config.components[0] == 'fedpav'


def test_the_classifier_learns_at_twice_the_rate():
  from fedreid_jax.method import optimizers

  for label, config in runs(FIRST).items():
    factor = optimizers.make(config.optim).factor
    assert factor('params/classifier/kernel') == 2.0, label
    assert factor('params/backbone/blocks_0/attn/qkv/kernel') == 1.0


def test_three_data_sets_train_and_the_fourth_is_the_target():
  for label, config in runs(FIRST).items():
    sources, target = label.partition(', ')[2].split(' -> ')
    names = {feddg.DATA[name][0] for name in sources.split('+')}
    assert {*config.data.sources} == names and len(names) == 3
    assert 'cuhk02' in names  # is never the target
    assert config.data.targets[0] == feddg.DATA[target][0]
    assert {*config.data.targets} == names | {config.data.targets[0]}


def test_prompts_are_trained_with_the_rest_or_alone():
  """10 for each part and 20 for the whole, 460,800 numbers in 12 blocks."""
  found = runs(FIRST)
  for method in feddg.METHODS:
    for route in feddg.ROUTES:
      plain, both, alone = (
        found[f'{method}{prompts}, {route}'] for prompts in feddg.PROMPTS
      )
      vits = [c.options['vit'] for c in (plain, both, alone)]
      counts = [sum(vit.part_prompts) for vit in vits]
      assert counts == [0, 50, 50] and 50 * 768 * 12 == 460_800
      assert [c.model.trained for c in (plain, both, alone)] == [
        *('', '', '.*prompt'),
      ]
      assert alone.start_from == f'{method}, {route}'
      assert not plain.start_from and not both.start_from


@pytest.mark.parametrize('preset', declare.PRESETS)
def test_both_protocols_share_their_runs(preset):
  assert runs(FIRST, preset) == runs(SECOND, preset)


def shown(table, label, preset):
  k = 0 if preset == 'paper' else 1
  names = [pair[k].partition(':')[0] for pair in feddg.DATA.values()]
  lines = [
    Line(label, {}, name, 'global', 'last', 1, {'mAP': 1.0}, 1.0, 1.0)
    for name in names
  ]
  return {line.target for line in declare.annotate(table, preset, lines)}


@pytest.mark.parametrize(
  'preset, target, own',
  [
    ('paper', 'market1501', {'cuhk02', 'cuhk03-np', 'msmt17'}),
    ('synthetic', 'plaza', {'campus', 'mall', 'station'}),
    ('smoke', 'plaza', {'campus', 'mall', 'station'}),
  ],
)
def test_each_protocol_shows_its_targets(preset, target, own):
  label = 'FedPav, MS+C2+C3 -> M'
  assert shown(FIRST, label, preset) == {target}
  assert shown(SECOND, label, preset) == own


@pytest.mark.slow
def test_miniatures_of_the_data_sets_from_end_to_end(tmp_path):
  """Two rows of both tables on the layouts of the data sets; ViT weights."""
  pictures = miniatures.render(14, height=32, width=16)
  root = tmp_path / 'root'
  for name in ('cuhk02', 'cuhk03-np', 'market1501', 'msmt17'):
    miniatures.write(name, root / name, pictures)
  small = (
    *('data.height=32', 'data.width=16', 'rounds=1', 'evaluation.every=1'),
    *('local.steps=1', 'local.batch=4', 'local.identities=2'),
    *('vit.size=tiny', 'vit.stride=6', 'augment.pad=2'),
  )
  (config,) = declare.runs(FIRST.rows[0], FIRST, 'paper', small)
  network = networks.wrap(
    networks.build(config.model, 4, vars(config.options['vit'])), (32, 16, 3)
  )
  file = tmp_path / 'vit.safetensors'
  weights.save(file, network.init(jax.random.key(0)), {'form': weights.OWN})
  fields = [f'--set={x}' for x in (*small, f"model.pretrained='{file}'")]
  found = {}
  for protocol in (1, 2):
    code, out, err = commands.launch_program(
      *('table', f'feddg/protocol{protocol}', '--preset=paper'),
      *(f'--root={root}', f'--workdir={tmp_path / "runs"}', '--available'),
      '--only=FedPav, MS+C2+C3 -> M;CrossStyle, C2+C3+M -> MS',
      *fields,
      timeout=1200.0,
    )
    assert code == 0, out + err
    tables = (tmp_path / 'runs').glob(f'feddg/protocol{protocol}*.csv')
    (path,) = (p for p in tables if not p.stem.endswith('-runs'))
    with path.open() as text:
      found[protocol] = [
        (row['label'], row['target']) for row in csv.DictReader(text)
      ]
  to_m, to_ms = 'FedPav, MS+C2+C3 -> M', 'CrossStyle, C2+C3+M -> MS'
  assert found[1] == [(to_m, 'market1501'), (to_ms, 'msmt17')]
  assert sorted(found[2]) == sorted(
    [(to_m, name) for name in ('msmt17', 'cuhk02', 'cuhk03-np')]
    + [(to_ms, name) for name in ('cuhk02', 'cuhk03-np', 'market1501')]
  )
  # The second table has trained nothing.
  folders = [*(tmp_path / 'runs').glob('*/config.json')]
  assert len(folders) == 2
  for path in folders:
    saved = json.loads(path.read_text())
    assert 'cuhk03-np:boxes=labeled' in saved['data']['sources']


@pytest.mark.slow
def test_a_missing_data_set_is_named(mini_copy, tmp_path):
  for name in ('market1501', 'msmt17', 'cuhk03-np'):
    mini_copy(name)
  lack = {
    cells.lacking(
      declare.runs(row, FIRST, 'paper', [f'data.root={str(tmp_path)!r}'])[0]
    )
    for row in FIRST.rows
  }
  assert lack == {'cuhk02 (CUHK02: no folder P1/cam1)'}
