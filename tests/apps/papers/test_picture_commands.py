"""`launchers.visualize` and `launchers.invert` as a user meets them."""

import json

import commands
import numpy as np
import pytest
import toy
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.apps.papers import report
from fedreid_jax.apps.papers.report import Line
from fedreid_jax.training import loaded_run, loop


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """(configuration, work directory) of a run of four identities a domain."""
  config = toy.replaced(
    toy.synthetic_config(),
    {'name': 'dfh', 'components': ('fedpav', 'dfh'), 'dfh.space': 'b'},
  )
  workdir = tmp_path_factory.mktemp('run')
  loop.train(config, workdir)
  return config, workdir


@pytest.mark.slow
def test_a_run_is_loaded_as_it_was_left(finished):
  config, workdir = finished
  run = loaded_run.load(config, workdir)
  assert (run.name, run.step) == ('global', 1)
  assert run.states['dfh'].shape == (2, 4, 8)
  assert [c.name for c in run.federation.clients] == ['campus', 'plaza']
  before = loaded_run.load(config, workdir, '0')
  kernel = 'params/backbone/conv1/kernel'
  assert not np.array_equal(run.variables[kernel], before.variables[kernel])


@pytest.mark.slow
@pytest.mark.parametrize(
  'load, message',
  [
    (lambda run: run.target('moon'), 'no target .moon.*there are mall'),
    (lambda run: run.client('mall'), 'no client .mall.*campus, plaza'),
    (lambda run: run(which='new'), 'unknown checkpoint'),
    (lambda run: run(which='7'), 'no checkpoint 7'),
    (lambda run: run(name='client:plaza'), 'there are global'),
  ],
)
def test_what_a_run_does_not_have(finished, load, message):
  class Run:
    def __call__(self, **what):
      return loaded_run.load(*finished, **what)

    def __getattr__(self, name):
      return getattr(self(), name)

  with pytest.raises(errors.FedReIDError, match=message):
    load(Run())


@pytest.mark.slow
def test_pictures_of_two_runs(finished, tmp_path):
  _, workdir = finished
  out = tmp_path / 'both.png'
  code, text, err = commands.launch(
    'visualize', f'--workdir={workdir},{workdir}', '--what=cmc', f'--out={out}'
  )
  assert code == 0, err
  assert text.splitlines()[0] == str(out)
  assert 'next: fedreid report' in text
  with Image.open(out) as image:
    assert image.size[0] > 500


def test_picture_of_a_sweep(tmp_path):
  lines = [
    Line(
      f'dppt dppt.k={k}',
      {'dppt.k': k},
      *('plaza', 'global', 'last', 3),
      {'mAP': 20.0 + int(k), 'mAP std': 1.0},
      *(1.0, 1.0),
    )
    for k in ('1', '4')
  ]
  report.write(tmp_path / 'table', 'title', lines)
  code, out, err = commands.launch(
    'visualize', f'--workdir={tmp_path}', '--what=sweep'
  )
  assert code == 0, err
  assert out.strip() == str(tmp_path / 'sweep.png')
  with Image.open(tmp_path / 'sweep.png') as image:
    assert min(image.size) > 400


@pytest.mark.slow
def test_one_command_draws_two_methods_in_the_plane(finished, tmp_path):
  config, workdir = finished
  other = toy.replaced(config, {'dfh.novel': 'feature_mixup'})
  folders = [tmp_path / 'other', workdir]
  loop.train(other, folders[0])
  out = tmp_path / 'plane.svg'
  code, text, err = commands.launch(
    'visualize',
    f'--workdir={",".join(map(str, folders))}',
    '--what=tsne',
    '--source=plaza',
    f'--out={out}',
  )
  assert code == 0, err
  assert text.splitlines()[0] == str(out)
  drawn = out.read_text()
  for title in ('FH + Feature-MixUp', ': DFH -->'):
    assert title in drawn
  assert 'novel domain, hallucinated from plaza' in drawn
  assert 'mall' not in drawn  # only training domains


@pytest.mark.slow
def test_inversion_leaves_a_picture_and_numbers(finished):
  _, workdir = finished
  code, text, err = commands.launch(
    'invert',
    f'--workdir={workdir}',
    '--source=plaza',
    '--identities=4',
    '--steps=4,4',
    '--scale=0',
  )
  # Four steps reconstruct nothing.
  assert (code, 'audit invalid: ' in err) == (4, True)
  assert 'real feature does not lead to the person' in err
  with Image.open(workdir / 'inversion.png') as image:
    assert image.size[0] > 500
  found = json.loads((workdir / 'inversion.json').read_text())
  assert found['sources'] == ['plaza'] and found['scale'] == 0
  assert found['images'] == {'identity means': 4, 'real feature': 4}
  assert found['judge']['other_model'] is False
  assert found['rank1']['person']['chance'] == 25
  assert found['rank1']['domain']['chance'] == 50
  losses = found['losses']['identity means']
  assert losses['after']['loss'] < losses['before']['loss']
  person = found['rank1']['person']['identity means']
  low, high = found['intervals']['person']['identity means']
  shown = f'identity means {person:.1f} [{low:.1f}, {high:.1f}]'
  assert f'right person, %: {shown}' in text
  assert found['valid'] is False
  assert found['failed'][0].startswith('real feature does not')


@pytest.mark.slow
def test_inversion_of_sent_statistics(finished):
  _, workdir = finished
  code, text, err = commands.launch(
    'invert',
    f'--workdir={workdir}',
    '--attack=dfs',
    '--identities=4',
    '--steps=4,4',
  )
  assert (code, 'audit invalid: ' in err) == (4, True)
  with Image.open(workdir / 'inversion-dfs.png') as image:
    assert image.size[0] > 500
  found = json.loads((workdir / 'inversion-dfs.json').read_text())
  assert found['sources'] == ['campus', 'plaza']
  assert set(found['images'].values()) == {8}
  assert not found['valid'] and 'real feature' in ' '.join(found['failed'])
  queries = {'real feature', 'noise', 'real', 'chance'}
  assert set(found['rank1']['person']) == queries
  domain = queries | {'DFS', 'permuted DFS'}
  assert set(found['rank1']['domain']) == domain
  for losses in found['losses'].values():
    assert losses['after']['feature'] < losses['before']['feature']
  assert 'right domain, %: DFS' in text


@pytest.mark.slow
@pytest.mark.parametrize(
  'door, flags, code, message',
  [
    ('visualize', ['--workdir={run},{run}', '--what=ranked'], 2, 'shows one'),
    ('visualize', ['--workdir={bare}', '--what=cmc'], 4, 'no checkpoint'),
    ('visualize', ['--workdir={run}', '--what=sweep'], 4, 'no table'),
    ('invert', ['--workdir={run}', '--judge={none}'], 4, 'no readable'),
    ('invert', ['--workdir={run}', '--steps=5'], 2, 'HALF,FULL'),
    (
      'invert',
      ['--workdir={run}', '--attack=dfs', '--source=plaza'],
      2,
      '--source',
    ),
    ('invert', ['--workdir={run}', '--measured_by={none}'], 4, 'no readable'),
  ],
)
def test_one_line_and_a_code(finished, tmp_path, door, flags, code, message):
  _, workdir = finished
  bare = tmp_path / 'bare'  # a run that was interrupted before its first save
  bare.mkdir()
  (bare / 'config.json').write_bytes((workdir / 'config.json').read_bytes())
  places = {'run': workdir, 'bare': bare, 'none': tmp_path / 'none'}
  status, _, err = commands.launch(
    door, *(flag.format(**places) for flag in flags)
  )
  lines = err.strip().splitlines()
  assert status == code, err
  assert len(lines) == 1 and lines[0].startswith(f'error[{code}]: '), err
  assert message in lines[0]
