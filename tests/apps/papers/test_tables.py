"""The papers' tables as declared, and `launchers.table`."""

import functools

import commands
import pytest

from fedreid_jax import errors
from fedreid_jax.apps.papers import cells
from fedreid_jax.apps.papers.report import Line
from fedreid_jax.apps.papers.tables import (
  declare,
  dfh,
  feddg,
  fedreid,
  fedreidbench,
  fedreidbench_journal,
  l2rw,
  others,
)

PAPERS = (dfh, fedreidbench, fedreidbench_journal, l2rw, fedreid, feddg, others)
TABLES = [t for paper in PAPERS for t in paper.TABLES]
BY_ID = {table.id: table for table in TABLES}
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def line(label, target, model='global', kind='last', **numbers):
  return Line(label, {}, target, model, kind, 1, dict(numbers), 1.0, 1.0)


def test_names_of_tables_are_unique():
  assert len(BY_ID) == len(TABLES)
  papers = {paper.__name__.rpartition('.')[2] for paper in PAPERS}
  assert {t.id.partition('/')[0] for t in TABLES} == papers
  kinds = ('last', 'best', 'best_three')
  assert all(t.rows and t.kind in kinds for t in TABLES)
  for table in TABLES:
    labels = {row.label for row in table.rows}
    assert not table.baseline or table.baseline in labels


def test_published_numbers_are_percentages():
  for row in (row for table in TABLES for row in table.rows):
    for scores in row.published.values():
      for name, value in scores.items():
        least = -100 if name.endswith(' - baseline') else 0
        assert least <= value <= 100


@pytest.mark.parametrize('table', TABLES, ids=lambda table: table.id)
def test_rows_are_valid_and_none_hides_another(table):
  for preset in declare.PRESETS:
    found: dict = {}
    for row in table.rows:
      for config in declare.runs(row, table, preset):
        kind = 'datasets' if preset == 'paper' else 'synthetic'
        assert config.data.source.partition('_')[0] == kind
        assert config.data.targets
        own = repr(config)
        for target in config.data.targets:
          key = row.label, row.model, target
          assert found.setdefault(key, own) == own
        if preset == 'paper':
          names = {target.partition(':')[0] for target in config.data.targets}
          assert set(row.published) <= names


# A number of each paper, looked up by hand: label, target, metric, number.
PRINTED = """
  dfh/table1 | SNR+DFH | market1501 | rank1 | 58.8
  dfh/table1 | M -> C2 | cuhk02 | mAP | 42.4
  dfh/table4 | towards M | cuhk03 | rank1 | 25.5
  fedreidbench/table6 | B=128 | 3dpes | rank10 | 91.6
  fedreidbench/table8 | CDW | viper | rank10 | 75.0
  fedreidbench/table3 | CDW local | prid2011 | rank1 - baseline | 7.33
  fedreidbench_journal/table2 | by_camera | cuhk03-np | mAP | 11.11
  fedreidbench_journal/table3 | Local | qmul-ilids | rank1 | 84.7
  fedreidbench_journal/table4 | CC & CDW | cuhk01 | rank1 - baseline | 6.1
  fedreidbench_journal/table5 | KD & CDW | grid | rank1 | 36.8
  l2rw/table1 | Moon+DNS | regdb | mINP | 27.87
  l2rw/table2 | ES DEEN | regdb | rank1 | 19.42
  l2rw/table2 | EI B+CA | llcm | mAP | 18.89
  l2rw/table3 | B+CA+mrb edu | llcm | mINP | 37.35
  feddg/protocol1 | SSCU + BAPM, C2+C3+M -> MS | msmt17 | rank1 | 49.5
  feddg/protocol1 | SSCU + PFTS, MS+C2+M -> C3 | cuhk03-np | mAP | 35.5
  fedreid/table2 | FedATT (S=1.0) | qmul-ilids | rank1 | 61.3
  fedreid/table3 | Centralised | viper | rank1 | 44.6
  fedreid/table5 | Centralised | cuhk-sysu | rank10 | 90.1
  fedreid/table6 | Supervised + distilled | market1501 | mAP | 76.2
  fedreid/table6 | Supervised + distilled | dukemtmc | rank1 | 77.4
  fedreid/table6 | Supervised + distilled | msmt17 | rank1 | 64.6
"""


def test_numbers_as_printed():
  for printed in PRINTED.strip().splitlines():
    table, label, target, metric, number = printed.strip().split(' | ')
    rows = [r for r in BY_ID[table].rows if r.label == label]
    found = next(r.published[target] for r in rows if target in r.published)
    assert found[metric] == float(number), printed


# Numbers of each table in its paper.
COUNTS = {
  'dfh/table1': 18 + 36,
  'dfh/table2': 20,
  'dfh/table3': 24,
  'dfh/table4': 16,
  'dfh/table5': 8,
  'fedreidbench/table2': 24,
  'fedreidbench/table4': 36,
  'fedreidbench/table8': 36,
  'fedreidbench_journal/table3': 36,
  'fedreidbench_journal/table4': 9 + 54,
  'fedreidbench_journal/table5': 4,
  'l2rw/table1': 192 - 16,
  'l2rw/table2': 108 + 12,  # those of EI DPPT twice
  'l2rw/table3': 36 + 6,  # those of the final method twice
  'feddg/protocol1': 18,
  'fedreid/table2': 24,
  'fedreid/table3': 16,
  'fedreid/table4': 5,
  'fedreid/table6': 3 * 5,
}


def test_no_number_is_left_out():
  found = {
    name: sum(len(s) for r in BY_ID[name].rows for s in r.published.values())
    for name in COUNTS
  }
  assert found == COUNTS


def test_figures_have_pictures():
  kinds = {t.id: t.picture for t in TABLES if t.picture}
  assert kinds.keys() == {t.id for t in TABLES if '/figure' in t.id}
  drawn = {'sweep', 'bars', 'curves', 'tsne', 'persons+distances'}
  assert {*kinds.values()} == drawn
  swept = [t for t in TABLES if t.picture == 'sweep']
  assert len(swept) == 4 and all(row.factors for t in swept for row in t.rows)


def test_the_plane_has_features_of_a_client():
  table = BY_ID['dfh/figure6']
  for preset, source in table.source.items():
    for row in table.rows:
      assert source in declare.runs(row, table, preset)[0].data.sources


def test_read_numbers_of_a_text():
  found = declare.read('a b  1 -\n c  +2.5 -3', ('x', 'y'))
  assert found == {'a b': {'x': 1.0}, 'c': {'x': 2.5, 'y': -3.0}}
  with pytest.raises(ValueError):
    declare.read('a 1', ('x', 'y', 'z'))


def test_published_numbers_are_shown_beside_published_data_only():
  table = BY_ID['fedreidbench_journal/table3']
  lines = [
    line('Global', 'viper', kind='best_three', rank1=50.0),
    line('Global', 'viper', rank1=49.0),
    line('Local', 'viper', 'client:viper', rank1=51.0),
    line('Local', 'viper', 'client:viper', 'own_best', rank1=53.0),
    line('Local', 'viper', 'client:grid', rank1=1.0),
    line('Local', 'viper', rank1=1.0),
    line('Local', 'viper', kind='best_three', rank1=1.0),
  ]
  best, last, local, best_local = declare.annotate(table, 'paper', lines)
  assert best.numbers == {'rank1': 50.0, 'rank1 published': 48.1}
  assert last.numbers == {'rank1': 49.0}
  assert local.model == best_local.model == 'client:viper'
  assert local.numbers == {'rank1': 51.0}
  assert best_local.numbers == {'rank1': 53.0, 'rank1 published': 52.0}
  plain = declare.annotate(table, 'synthetic', lines)
  assert [set(one.numbers) for one in plain] == [{'rank1'}] * 4


def test_best_rounds_are_shown_where_the_paper_has_them():
  kinds = ('last', 'best_three', 'best')
  lines = [line('DFH', 'cuhk02', kind=kind) for kind in kinds]
  kept = declare.annotate(BY_ID['dfh/table1'], 'paper', lines)
  assert [one.kind for one in kept] == ['last']
  assert kept[0].numbers == {'mAP published': 71.7, 'rank1 published': 69.5}


def test_figures_of_the_best_round_are_beside_the_best_round():
  kinds = ('last', 'best', 'best_three')
  lines = [line('EI B', 'regdb', kind=kind, mAP=1.0) for kind in kinds]
  last, best = declare.annotate(BY_ID['l2rw/table2'], 'paper', lines)
  assert (last.kind, best.kind) == ('last', 'best')
  assert last.numbers == {'mAP': 1.0}
  assert best.numbers['mAP published'] == 16.77


def test_clusters_are_all_shown():
  table = BY_ID['fedreidbench_journal/table5']
  lines = [line('CC & CDW', 'grid', f'cluster:{k}', rank1=1.0) for k in (0, 1)]
  assert len(declare.annotate(table, 'paper', lines)) == 2


def test_a_row_may_start_from_another_one():
  """That row is earlier, trains the same clients and has a finished model."""
  starting = [(t, r) for t in TABLES for r in t.rows if r.starts_from]
  assert {t.id for t, _ in starting} == {
    *('fedreid/table6', 'feddg/protocol1', 'feddg/protocol2'),
    'others/adaptation',
  }
  for table, row in starting:
    earlier = table.rows[: table.rows.index(row)]
    (first,) = (r for r in earlier if r.label == row.starts_from)
    assert not first.starts_from
    for preset in declare.PRESETS:
      own, start = (declare.runs(r, table, preset)[0] for r in (row, first))
      assert own.start_from == row.starts_from and not start.start_from
      if table.id == 'others/adaptation':
        # Other domains adapt the model.
        assert own.model == start.model
        continue
      assert own.data == start.data
      if table.id == 'fedreid/table6':
        assert own.components == ('standalone', 'local_expert')
        frozen = [c.options['local_expert'].frozen for c in (own, start)]
        assert frozen == [True, False] and own.model == start.model
      else:
        assert own.components == start.components


def test_rows_are_chosen_by_label_or_part_of_it():
  def labels(table, only):
    return list({r.label: 0 for r in declare.chosen(BY_ID[table], only)})

  assert labels('dfh/table1', 'DFH') == ['DFH']
  assert labels('dfh/table1', 'FH') == ['DFH', 'SNR+DFH']
  assert labels('fedreidbench_journal/table4', 'CDW') == ['Standalone', 'CDW']
  assert len(labels('dfh/table5', '')) == 2
  both = ['Direct', 'Supervised + distilled']  # which starts from the first
  assert labels('fedreid/table6', 'distilled') == both
  assert labels('fedreid/table6', 'Supervised') == ['Supervised']
  assert labels('dfh/table1', 'DFH;FedPav;MS -> M') == [
    *('MS -> M', 'FedPav', 'DFH'),
  ]
  with pytest.raises(errors.ConfigError, match="no row 'nobody'.*--only"):
    declare.chosen(BY_ID['dfh/table1'], 'DFH;nobody')
  with pytest.raises(errors.ConfigError, match='--only'):
    declare.chosen(BY_ID['dfh/table1'], 'nobody')


@pytest.mark.slow
def test_rows_that_lack_a_data_set_name_it(mini_copy, tmp_path):
  for name in ('market1501', 'msmt17', 'cuhk03'):
    mini_copy(name)
  found = {}
  for name in ('dfh/table1', 'dfh/table3'):
    for row in BY_ID[name].rows:
      (config,) = declare.runs(
        row, BY_ID[name], 'paper', [f'data.root={str(tmp_path)!r}']
      )
      found[name, row.label] = cells.lacking(config)
  lack = 'cuhk02 (CUHK02: no folder P1/cam1)'
  assert {*found.values()} == {'', lack}
  assert found['dfh/table1', 'DFH'] == lack
  assert [label for (_, label), text in found.items() if not text] == [
    *('MS -> M', 'C3 -> M', 'MS -> C3', 'M -> C3'),
    *('FedPav, MS+C3 -> M', 'FedPav, MS+M -> C3'),
    *('SNR, MS+C3 -> M', 'SNR, MS+M -> C3'),
    *('DFH, MS+C3 -> M', 'DFH, MS+M -> C3'),
  ]
  table = BY_ID['dfh/table1']
  (config,) = declare.runs(table.rows[0], table, 'smoke')
  assert cells.lacking(config) == ''


def test_the_law_leans_towards_the_domain_it_says():
  table = BY_ID['dfh/table4']
  for row in table.rows:
    towards = row.label.partition(' ')[2]
    for preset, place in (('paper', 0), ('synthetic', 1)):
      config = declare.runs(row, table, preset)[0]
      alpha = config.options['dfh'].alpha
      leaning = dict(zip(sorted(config.data.sources), alpha, strict=True))
      for name, domains in dfh.DATA.items():
        if domains[place] in leaning:
          assert leaning[domains[place]] == (2.0 if name == towards else 1.0)


def test_a_row_may_be_several_runs():
  row = declare.Row(
    'x',
    'configs/fedpav.py',
    {declare.ALL: ('rounds=3',), 'synthetic': ('rounds=4',)},
    each={'smoke': [('data.world_seed=1',), ('data.world_seed=2',)]},
  )
  table = declare.Table('t', '', [row], {'paper': ('rounds=9',)})
  found = declare.runs(row, table, 'smoke', ['optim.lr=0.5'])
  assert [(c.rounds, c.data.world_seed, c.optim.lr) for c in found] == [
    (4, 1, 0.5),
    (4, 2, 0.5),
  ]
  assert [c.rounds for c in declare.runs(row, table, 'paper')] == [3]
  with pytest.raises(errors.ConfigError, match='nothing'):
    declare.runs(row, table, 'smoke', ['nothing=1'])


def test_map_of_all_tables():
  code, out, err = commands.launch('table', '--list')
  assert code == 0, err
  for table in TABLES:
    assert f'{table.id}  {table.title}\n' in out
  assert "--table=dfh/table3 --preset=synthetic '--only=DFH, MS+C3 -> M'" in out
  code, out, _ = commands.launch('table', 'dfh/table2', '--list')
  assert code == 0 and out.startswith('dfh/table2  ')


@pytest.mark.parametrize(
  'flags, message',
  [
    (('--table=p9/table1',), "no table 'p9/table1'"),
    (('p9/table1',), "no table 'p9/table1'"),
    (('dfh/table2', 'dfh/table3'), "stray argument 'dfh/table3'"),
    slow(('--table=dfh/table2', '--config=configs/dfh.py'), '--set=KEY=VALUE'),
    slow(('--table=dfh/table2', '--only=FH', '--preset=paper'), '--root'),
    slow(('--table=dfh/table2', '--only=FH', '--set=nothing=1'), 'nothing'),
  ],
)
def test_one_line_before_anything_runs(flags, message, tmp_path):
  code, _, err = commands.launch('table', *flags, f'--workdir={tmp_path / "w"}')
  assert code == 2 and len(err.splitlines()) == 1, err
  assert message in err
  assert not (tmp_path / 'w').exists()
