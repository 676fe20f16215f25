import json

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.apps.papers import cells, comparison
from fedreid_jax.cli import run
from fedreid_jax.config import load, presets, recipes
from fedreid_jax.training import named_models
from fedreid_jax.training.files import recorder, run_files, sealed

ARG = 'smoke,rounds=2'
METHODS = ('fedpav', 'fedpav+fedprox:local.epochs=2')


def finish(cell, shift, queries=40):
  """Writes what a run of given quality leaves behind."""
  cell.workdir.mkdir(parents=True)
  recorder.write_json(
    cell.workdir / 'results.json', {'rounds': 2, 'summary': []}
  )
  rng = np.random.default_rng(cell.config.seed)
  np.savez(
    cell.workdir / recorder.QUERIES,
    **{
      f'global/{target}/0': rng.uniform(0.2, 0.6, queries) + shift * scale
      for target, scale in (('mall', 1.0), ('park', 3.0))
    },
  )


def test_components_are_added_to_those_of_a_recipe(tmp_path):
  planned = comparison.plan(METHODS, [ARG], [0, 1], tmp_path)
  assert [(c.label, c.config.seed) for c in planned] == [
    (method, seed) for seed in (0, 1) for method in METHODS
  ]
  assert planned[0].config.components == ('fedpav',)
  arm = planned[1].config
  assert arm.components == ('fedpav', 'fedprox')
  assert (arm.local.epochs, arm.rounds) == (2, 2)
  assert comparison.config('fedpav:optim.lr=1e+0', ARG, 0).optim.lr == 1.0
  assert 'smoke' in presets.GENERALISED


def test_added_components_have_fields(tmp_path, monkeypatch):
  """Those of a module outside the package, in every command."""
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine/decor.py').write_text(
    'import dataclasses\n'
    'from typing import Annotated\n'
    'from fedreid_jax.method import Checked, Component, Range\n'
    '@dataclasses.dataclass(frozen=True)\n'
    'class Options(Checked):\n'
    "  weight: Annotated[float, Range(0, 9), 'weight'] = 0.5\n"
    'def make(options=Options()):\n'
    "  return Component('decor')\n"
  )
  monkeypatch.syspath_prepend(tmp_path)
  made = comparison.config('fedpav+mine.decor:decor.weight=0.25', ARG, 3)
  assert (
    made.components == ('fedpav', 'mine.decor')
    and made.options['decor'].weight == 0.25
  )
  made = load.load_config(
    'fedsgd+mine.decor:variant=strict', {'decor.weight': 2.0}
  )
  assert made.components[-1] == 'mine.decor' and made.decor.weight == 2.0
  assert (
    made.components[:-1] == load.load_config('fedsgd:variant=strict').components
  )
  command = [
    'fedreid',
    '--config=fedpav+mine.decor:smoke',
    '--config.decor.weight=3',
  ]
  assert (
    run.parse(None, command) == ['fedreid']
    and run.config().options['decor'].weight == 3
  )
  with pytest.raises(errors.ConfigError, match='decor.wait.*decor.weight'):
    comparison.config('fedpav+mine.decor:decor.wait=1', ARG, 0)


def test_plus_signs_in_values_and_paths_add_no_component(tmp_path):
  made = comparison.config(
    'fedpav+fedprox:model.pretrained=a+b.safetensors,optim.lr=1e+0', ARG, 0
  )
  assert made.model.pretrained == 'a+b.safetensors'
  assert made.components == ('fedpav', 'fedprox') and made.optim.lr == 1.0
  file = tmp_path / 'my+own.py'
  file.write_text((recipes.folder() / 'fedpav.py').read_text())
  assert comparison.config(f'{file}', ARG, 0).components == ('fedpav',)
  made = comparison.config(f'{file}+fedprox:local.epochs=2', ARG, 0)
  assert made.components == ('fedpav', 'fedprox') and made.local.epochs == 2


def test_comparisons_have_folders_of_their_own():
  def folder_name(methods, arg):
    return cells.folder_name(methods, (*methods, arg), 60)

  compared = [
    (METHODS, ARG),
    (METHODS[::-1], ARG),
    (METHODS, 'smoke'),
    (('fedpav', 'dfh'), ARG),
    (('fedpav-dfh', 'dfh'), ARG),
    (('fedpav', 'dfh', *100 * ['fedprox']), ARG),
    (('fedpav', 'dfh', *101 * ['fedprox']), ARG),
  ]
  names = [folder_name(*one) for one in compared]
  assert len({*names}) == len(names) and max(map(len, names)) < 70
  assert names[3].startswith('fedpav-dfh-') and names[0] == (
    folder_name(METHODS, ARG)
  )


@pytest.mark.parametrize(
  ('methods', 'message'),
  [
    (('fedpav', 'fedpav'), 'given twice'),
    (('fedpav', 'fedpaw'), 'fedpav'),
    (('fedpav', 'fedpav+fedprx'), 'fedprox'),
    (('fedpav', 'fedpav:optim.rate=1'), 'rate'),
  ],
)
def test_methods_that_are_refused(tmp_path, methods, message):
  with pytest.raises(errors.ConfigError, match=message):
    comparison.plan(methods, [ARG], [0], tmp_path)


def test_only_equal_models_are_said_to_be_identical(tmp_path, monkeypatch):
  methods = ('fedpav', 'fedpav+fedprox', 'fedpav+moon', 'fedpav+fedopt')
  planned = comparison.plan(methods, [ARG], [0, 1], tmp_path)
  for cell in planned:
    finish(cell, 0.02 * (cell.label == 'fedpav+moon'))
  # fedopt ranks all queries of these targets alike with another model.
  models = {
    cell.workdir: {'global': {'kernel': np.full(2, cell.label[-5:] == 'edopt')}}
    for cell in planned
  }
  monkeypatch.setattr(run_files, 'checkpoints_of', lambda folder: folder)
  monkeypatch.setattr(
    named_models,
    'restore',
    lambda folder, _: named_models.Restored(2, models[folder], np.zeros(1), {}),
  )
  rows = comparison.compare(planned, 'global')
  assert {row.label: row.identical for row in rows} == {
    'fedpav+fedprox': True,
    'fedpav+moon': False,
    'fedpav+fedopt': False,
  }
  (note,) = comparison.notes('fedpav', rows)
  assert note.startswith('fedpav+fedprox and fedpav are identical')
  comparison.write(tmp_path / 'compare', 'fedpav', rows, {})
  assert f'\n\n{note}.\n' in (tmp_path / 'compare.md').read_text()


def test_effects_are_those_of_pairs(tmp_path):
  planned = comparison.plan(METHODS, [ARG], [0, 1, 2], tmp_path)
  assert comparison.compare(planned, 'global') == []
  for cell in planned[:4]:
    finish(cell, 0.02 * (cell.label != 'fedpav'))
  mall, park, both = comparison.compare(planned, 'global')
  assert [row.target for row in (mall, park, both)] == [
    *('mall', 'park', comparison.ALL)
  ]
  # Queries differ by up to 40 mAP, their pairs not at all.
  np.testing.assert_allclose(mall.found[:3], 2.0, atol=1e-9)
  np.testing.assert_allclose(park.found[:3], 6.0, atol=1e-9)
  assert both.found.mean == pytest.approx(4.0)
  assert both.found.low < 4.0 < both.found.high
  assert (both.found.seeds, both.found.targets) == (2, 2)
  assert mall.arm - mall.base == pytest.approx(2.0)
  comparison.write(tmp_path / 'compare', 'fedpav', [mall, park, both], {})
  written = json.loads((tmp_path / 'compare.json').read_text())
  assert [row['mean'] for row in written] == pytest.approx([2.0, 6.0, 4.0])
  text = (tmp_path / 'compare.md').read_text()
  assert '| +2.0 [+2.0, +2.0] |' in text and 'Compared with fedpav' in text
  assert (tmp_path / 'compare.png').stat().st_size > 1000


def test_all_effects_are_of_the_seeds_that_all_methods_have(tmp_path):
  methods = (*METHODS, 'fedpav:local.epochs=2')
  planned = comparison.plan(methods, [ARG], [0, 1, 2], tmp_path)
  for cell in planned[:5]:  # seed 1 lacks the third method, seed 2 all
    finish(cell, 0.02 * (cell.label != 'fedpav') + 0.1 * cell.config.seed)
  rows = comparison.compare(planned, 'global')
  assert {(row.label, row.found.seeds) for row in rows} == {
    (method, 1) for method in methods[1:]
  }
  assert len({row.base for row in rows if row.target == 'mall'}) == 1
  left_out = comparison.unfinished(planned)
  assert left_out == {1: [methods[2]], 2: [*methods]}
  (line,) = comparison.said(left_out)
  assert line.startswith(f'seeds left out, not ended: 1 ({methods[2]}); 2 (')
  comparison.write(tmp_path / 'compare', 'fedpav', rows, left_out)
  assert f'\n{line}.\n' in (tmp_path / 'compare.md').read_text()
  written = json.loads((tmp_path / 'compare.json').read_text())
  assert all(row['left_out'] == [1, 2] for row in written)
  for cell in planned[5:]:
    finish(cell, 0.0)
  assert comparison.said(comparison.unfinished(planned)) == []


def test_runs_that_do_not_fit_together(tmp_path):
  planned = comparison.plan(METHODS, [ARG], [0], tmp_path)
  finish(planned[0], 0.0)
  finish(planned[1], 0.0, queries=30)
  with pytest.raises(errors.ConfigError, match='different targets or queries'):
    comparison.compare(planned, 'global')
  for models in ('concat', 'client', 'best_client'):
    with pytest.raises(errors.ConfigError, match=f'no models .{models}.'):
      comparison.compare(planned, models)
  (planned[0].workdir / recorder.QUERIES).unlink()
  with pytest.raises(errors.ConfigError, match='ranks no queries'):
    comparison.compare(planned, 'global')
  assert cells.results(planned[0])


def test_a_seed_with_damaged_queries_does_not_count(tmp_path):
  planned = comparison.plan(METHODS, [ARG], [0, 1], tmp_path)
  for cell in planned:
    finish(cell, 0.01 * (cell.label != 'fedpav'))
  workdir = planned[0].workdir
  path = workdir / recorder.QUERIES
  sealed_ = {'queries.npz': sealed.described(path.read_bytes())}
  results = {'rounds': 2, 'summary': [], 'files': sealed_}
  recorder.write_sealed(workdir / 'results.json', results)
  (row, *_) = comparison.compare(planned, 'global')
  assert row.found.seeds == 2
  assert cells.unchecked(planned)[0].startswith('note: 3 of 4 runs')
  finish_again = np.load(path)
  np.savez(path, **{k: v + 0.5 for k, v in finish_again.items()})
  with pytest.warns(errors.DamagedRecordWarning, match='queries.npz was chan'):
    (row, *_) = comparison.compare(planned, 'global')
  assert row.found.seeds == 1


def test_targets_of_all_routes_are_joined_by_patterns(tmp_path):
  args = [ARG, f'{ARG},data.sources=("park",)']
  planned = comparison.plan(METHODS, args, [0, 1], tmp_path)
  assert len({cell.workdir for cell in planned}) == 8
  for cell in planned[:-1]:
    gain = 0.02 if cell.trial == '1' else 0.04
    finish(cell, gain * (cell.label != 'fedpav'))
  rows = comparison.compare(planned, 'global', ['ma.*', '[a-z]+'])
  assert [row.target for row in rows] == ['ma.*', '[a-z]+']
  mall, both = rows
  assert (mall.found.seeds, mall.found.targets) == (1, 2)
  assert mall.found.mean == pytest.approx(3.0)  # of 2 and 4
  assert both.found.mean == pytest.approx(6.0)  # of 2, 6, 4 and 12
  finish(planned[-1], 0.04)
  alone = comparison.compare(planned, 'global')
  assert [row.target for row in alone] == [
    *('1: mall', '1: park', '2: mall', '2: park', comparison.ALL)
  ]
  assert alone[-1].found.mean == pytest.approx(6.0)
  for pattern, message in (('(', 'not a pattern'), ('x', 'there are 1: mall')):
    with pytest.raises(errors.ConfigError, match=message):
      comparison.compare(planned, 'global', [pattern])
  with pytest.raises(errors.ConfigError, match='a route is given twice'):
    comparison.plan(METHODS, [ARG, ARG], [0], tmp_path)
