"""`fedreid audit`, as a program."""

import json

import commands
import pytest
import toy
from PIL import Image

from fedreid_jax.training import loop


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """Work directory of a run of FedPav of four identities a domain."""
  folder = tmp_path_factory.mktemp('run')
  loop.train(toy.synthetic_config(), folder)
  return folder


@pytest.mark.slow
def test_a_failed_control_is_code_4_and_leaves_its_figures(workdir):
  pytest.importorskip('matplotlib')
  code, out, err = commands.launch_program(
    'audit',
    f'--workdir={workdir}',
    '--attack=gradient',
    '--source=plaza',
    '--images=2',
    '--steps=8',  # too few for the positive control
    '--starts=1',
  )
  file = workdir / 'audit-gradient.json'
  (line,) = err.splitlines()
  assert code == 4 and line.startswith('error[4]: audit invalid: '), err
  assert 'the positive control reaches' in line and str(file) in line
  assert 'plaza, 2 images, gradients of 1, noise 0: PSNR' in out
  assert 'right person at rank 1: ' in out
  found = json.loads(file.read_text())
  assert found['valid'] is False and len(found['failed']) >= 1
  assert found['source'] == 'plaza' and len(found['gains']) == 2
  assert found['persons']['chance'] == pytest.approx(3 / 14)
  assert found['interval'][0] < found['gain'] < found['interval'][1]
  with Image.open(workdir / 'audit-gradient.png') as image:
    assert min(image.size) > 200


@pytest.mark.slow
def test_membership_leaves_figures_and_no_models(tmp_path):
  config = toy.replaced(toy.synthetic_config(8), {'data.shots': 4})
  loop.train(config, tmp_path)
  code, out, err = commands.launch_program(
    'audit', f'--workdir={tmp_path}', '--attack=member', '--shadows=6'
  )
  assert (code, err) == (0, ''), err
  assert 'model 6 of 6' in out and 'other images: AUC 0.' in out
  found = json.loads((tmp_path / 'audit-member.json').read_text())
  assert found['valid'] and found['positive']['auc'] >= 0.9
  assert (found['persons'], found['shadows'], found['changes']) == (16, 6, [])
  assert not list(tmp_path.glob('audit-member-*'))


@pytest.mark.slow
@pytest.mark.parametrize(
  'flags, message',
  [
    (['--attack=trace'], 'no statistics of DFH of two or more clients'),
    (['--attack=canary'], 'has no guarantee'),
    (['--attack=gradient', '--source=mall'], 'campus, plaza'),
  ],
)
def test_runs_that_have_nothing_to_audit(workdir, flags, message):
  code, _, err = commands.launch_program(
    'audit', f'--workdir={workdir}', *flags
  )
  (line,) = err.splitlines()
  assert code == 2 and line.startswith('error[2]: ') and message in line, err


def test_an_attack_must_be_named(tmp_path):
  code, _, err = commands.launch_program('audit', f'--workdir={tmp_path}')
  (line,) = err.splitlines()
  assert code == 2, err
  assert line == (
    'error[2]: no attack — --attack — one of gradient, trace, member, canary, '
    'noise'
  )
