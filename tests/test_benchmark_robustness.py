"""Cells of `benchmarks.robustness`: fields, runs and resumption."""

import json
from pathlib import Path

import numpy as np
import pytest
from absl import flags

from benchmarks import robustness
from fedreid_jax import errors
from fedreid_jax.config import validation
from fedreid_jax.training import loop

DOCS = Path(__file__).parents[1] / 'docs'
FIELDS = (
  *('data.height=16', 'data.width=8', 'model.features=(4,)', 'rounds=1'),
  *('data.identities=4', 'data.target_identities=4', 'local.batch=4'),
  *('evaluation.every=1',),
)


def cell(rule, attack, names=('plaza',)):
  fields = robustness.attack_fields(rule, attack, list(names), ('fedpav',))
  config = robustness.configure('smoke', fields, list(FIELDS))
  return validation.validate(config)


@pytest.mark.parametrize(
  'rule, attack, components',
  [
    ('mean', 'none', ('fedpav',)),
    ('median', 'none', ('fedpav', 'robust')),
    ('mean', 'shuffle', ('fedpav',)),
    ('krum', 'alie', ('fedpav', 'robust', 'byzantine')),
    ('mean', 'backdoor', ('fedpav', 'byzantine')),
  ],
)
def test_cells_have_their_rule_and_their_attack(rule, attack, components):
  config = cell(rule, attack, ('plaza', 'campus'))
  assert config.components == components
  if rule != 'mean':
    assert (config.options['robust'].rule, config.options['robust'].f) == (
      rule,
      2,
    )
  poisons = attack in ('shuffle', 'backdoor')
  assert config.data.poison == (attack if poisons else '')
  assert config.data.poisoned == (('plaza', 'campus') if poisons else ())
  if 'byzantine' in components:
    assert config.options['byzantine'].clients == ('plaza', 'campus')
  assert config.rounds == 1
  if attack == 'backdoor':
    assert config.options['byzantine'].kind == 'scale'


def test_an_attack_may_have_a_scale():
  config = cell('median', 'sign=10')
  own = config.options['byzantine']
  assert (own.kind, own.scale) == ('sign', 10.0)


def test_rules_that_resist_too_few_are_refused(tmp_path):
  found = robustness.run(cell('krum', 'none'), tmp_path)
  assert found['ended'] == 'refused' and 'needs 5 uploads' in found['why']


def test_other_errors_are_not_hidden(tmp_path, monkeypatch):
  def refuse(config, folder):
    raise errors.ConfigError('x', 'data.root', 'y')

  monkeypatch.setattr(robustness.fr, 'train', refuse)
  with pytest.raises(errors.ConfigError):
    robustness.run(cell('mean', 'none'), tmp_path)


@pytest.mark.slow
def test_a_table_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
  arguments = ['x', '--preset=smoke', '--share=0.34', '--rules=mean,median',
               '--attacks=none,backdoor']  # fmt: skip
  saved = flags.FLAGS.flag_values_dict() if flags.FLAGS.is_parsed() else {}
  flags.FLAGS(arguments + [f'--set={field}' for field in FIELDS])
  try:
    trained = []
    train = loop.train

    def count(config, folder):
      trained.append(folder.name)
      return train(config, folder)

    monkeypatch.setattr(robustness.fr, 'train', count)
    robustness.main(['x', str(tmp_path)])
    text = (tmp_path / 'robustness.json').read_text()
    robustness.main(['x', str(tmp_path)])
    assert (tmp_path / 'robustness.json').read_text() == text
  finally:
    for name in ('preset', 'share', 'rules', 'attacks', 'set'):
      flags.FLAGS[name].unparse()
      if name in saved:
        flags.FLAGS[name].value = saved[name]
  found = json.loads(text)
  assert len(found['attackers']) == 1
  assert {*found['cells']} == {
    f'{rule} {attack} 0'
    for rule in ('mean', 'median')
    for attack in ('none', 'backdoor')
  }
  for one in found['cells'].values():
    assert 0 < one['mAP'] <= 100 and one['bytes_up'] > 0
    assert 0 <= one['collision'] <= 100 and one['evasion'] > 0
  assert 'evasion backdoor' in capsys.readouterr().out


def _published(name):
  """The published cells of a measure."""
  path = DOCS / 'results' / f'{name}.json'
  return json.loads(path.read_text())['cells']


def _text(cells, name, field='mAP'):
  found = [cells[f'{name} {seed}'][field] for seed in range(3)]
  return f'{np.mean(found):.1f} ± {np.std(found, ddof=1):.1f}'


def test_the_page_of_robust_rules_has_the_published_runs():
  cells = _published('robustness')
  page = (DOCS / 'methods' / 'robust.md').read_text()
  for rule in ('mean', 'median', 'multikrum'):
    row = [_text(cells, f'{rule} {x}') for x in ('none', 'sign=10', 'backdoor')]
    row += [
      _text(cells, f'{rule} {x}', 'collision') for x in ('none', 'backdoor')
    ]
    assert f'| {rule} | {" | ".join(row)} |' in page


def test_the_page_of_compression_has_the_published_runs():
  cells = _published('compression')
  page = (DOCS / 'methods' / 'compress.md').read_text()
  for name in robustness.COMPRESSIONS:
    sent = cells[f'{name} 0']['bytes_up'] / 1e6
    assert f'| {name} | {_text(cells, name)} | {sent:.2f} |' in page
