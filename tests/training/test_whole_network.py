"""Runs that train few parameters of the network of another run."""

import json
import shutil

import jax
import numpy as np
import pytest
import toy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.config import validation
from fedreid_jax.core import trees
from fedreid_jax.models import tuning
from fedreid_jax.models.backbones import vit
from fedreid_jax.training import build, whole_network

SMALL = {
  'model.name': 'vit',
  'model.neck': 'none',
  'data.sources': ('plaza', 'campus'),
  'data.identities': 4,
  'data.target_identities': 4,
  'local.batch': 8,
  'evaluation.every': 2,
  'optim.schedule': 'constant',
  'execution.devices': 1,
}
PFTS = {
  'model.trained': '.*prompt',
  'vit.part_prompts': (1, 1, 1, 2),
  'optim.lr_multipliers': (('params/classifier/', 2.0),),
}
PROMPTS = 2 * 5 * 16  # numbers in two blocks


@pytest.fixture(scope='module', autouse=True)
def two_blocks():
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(vit.SIZES, 'tiny', vit.Size(16, 2, 2, 8))
    yield


def train(workdir, fields, recipe='fedpav:smoke', verbose=False, rounds=2):
  config = fr.load_config(recipe, SMALL | fields, rounds=rounds)
  return fr.train(config, workdir, verbose=verbose)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """A run of a whole network, and one of prompts that starts from it."""
  folder = tmp_path_factory.mktemp('runs')
  train(folder / 'whole', {})
  fields = PFTS | {'start_from': str(folder / 'whole')}
  train(folder / 'prompts', fields)
  return folder


def whole(workdir):
  """All variables of the server's model of a run, with its constants."""
  model = fr.load(workdir)
  shape = model.config.data.height, model.config.data.width, 3
  pinned = whole_network.pinned(model.config, workdir)
  return jax.device_get(build.merged(pinned, model.variables, shape))


def test_what_is_not_trained_has_the_bits_of_the_other_run(runs):
  before, after = whole(runs / 'whole'), whole(runs / 'prompts')
  backbone, _ = trees.split(before, tuning.BACKBONE)
  assert len(backbone) > 20
  for name, value in backbone.items():
    np.testing.assert_array_equal(after[name], value)
  new = {n for n in after.keys() - before.keys()}
  assert new == {f'params/backbone/prompt_{k}' for k in range(2)}
  # Not those of the seed, which the run had before it started from the other.
  initial = fr.load(runs / 'prompts', 0).variables
  for name in new:
    assert (after[name] != np.asarray(initial[name])).any()


def test_only_prompts_are_sent_and_the_model_is_tested(runs):
  lines = (runs / 'prompts' / 'metrics.jsonl').read_text().splitlines()
  rounds = [x for x in map(json.loads, lines) if 'bytes_up' in x]
  results = json.loads((runs / 'prompts' / 'results.json').read_text())
  # Two clients, float32.
  assert [x['bytes_up'] for x in rounds] == [2 * PROMPTS * 4] * 2
  assert results['rounds'] == 2
  assert 0 < results['evaluation'][-1]['metrics']['mAP'] <= 100


def test_a_resumed_run_needs_the_other_run_no_longer(runs, tmp_path):
  other = tmp_path / 'whole'
  shutil.copytree(runs / 'whole', other)
  fields = PFTS | {'start_from': str(other)}
  train(tmp_path / 'prompts', fields, rounds=1)
  shutil.rmtree(other)
  train(tmp_path / 'prompts', fields)
  one, two = (fr.load(x / 'prompts').variables for x in (runs, tmp_path))
  toy.assert_equal_trees(jax.device_get(one), jax.device_get(two))
  frozen = [whole(x / 'prompts') for x in (runs, tmp_path)]
  toy.assert_equal_trees(*frozen)
  (entry,) = fr.evaluate(tmp_path / 'prompts')
  results = json.loads((runs / 'prompts' / 'results.json').read_text())
  assert entry['metrics'] == results['evaluation'][-1]['metrics']


@pytest.mark.parametrize('digest', [{}, {'frozen_sha256': 'a'}])
def test_a_run_from_before_copies_keeps_its_own_backbone(tmp_path, digest):
  """Its constants were those of `model.pretrained`, and it has no copy."""
  (tmp_path / 'run.json').write_text(json.dumps(digest))
  fields = PFTS | {'start_from': 'runs/other'}
  config = validation.validate(fr.load_config('fedpav:smoke', SMALL | fields))
  found = whole_network.pinned(config, tmp_path)
  assert found.start_from == (str(tmp_path) if digest else '')
  frozen = {'params/backbone/a': np.zeros(2, np.float32)}
  assert bool(whole_network.described(config, frozen, digest)) == bool(digest)
  assert whole_network.described(config, frozen, None).keys() == {
    'frozen_sha256'
  }


def test_damaged_constants_are_refused(runs, tmp_path):
  copy = tmp_path / 'prompts'
  shutil.copytree(runs / 'prompts', copy)
  path = copy / 'frozen.safetensors'
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)
  with pytest.raises(errors.IntegrityError, match='not as the run wrote it'):
    fr.load(copy)
  path.unlink()
  with pytest.raises(errors.IntegrityError, match='cannot be read'):
    fr.load(copy)


def test_new_parameters_are_named_and_no_others_may_be_new(
  runs, tmp_path, capsys
):
  start = {'start_from': str(runs / 'whole')}
  train(tmp_path / 'a', PFTS | start, verbose=True, rounds=1)
  out = ' '.join(capsys.readouterr().out.split())
  new = 'params/backbone/prompt_0, params/backbone/prompt_1 trains'
  assert f'has none: {new}' in out
  for fields in (PFTS, {}):
    with pytest.raises(errors.ConfigError, match='reg_token was not shared'):
      train(tmp_path / 'b', fields | start | {'vit.registers': 2})


@pytest.mark.slow
def test_all_parameters_can_be_trained_with_new_prompts(runs, tmp_path):
  fields = {'vit.part_prompts': (1, 1, 1, 2), 'start_from': str(runs / 'whole')}
  train(tmp_path / 'all', fields, rounds=1)
  before, first = whole(runs / 'whole'), fr.load(tmp_path / 'all', 0).variables
  backbone, _ = trees.split(before, tuning.BACKBONE)
  for name, value in backbone.items():
    np.testing.assert_array_equal(first[name], value)
  # Prompts after prompts: nothing is new, and the trained ones are taken.
  fields = PFTS | {'start_from': str(tmp_path / 'all')}
  train(tmp_path / 'prompts', fields, rounds=1)
  last = fr.load(tmp_path / 'all').variables
  first = fr.load(tmp_path / 'prompts', 0).variables
  prompts = [n for n in first if 'prompt' in n]
  assert len(prompts) == 2
  for name in prompts:
    np.testing.assert_array_equal(first[name], last[name])


@pytest.mark.slow
def test_matrices_of_the_other_run_are_not_added_twice(runs, tmp_path):
  """The model before training is that of the other run in every case."""
  lora = {'model.tune': 'lora'}
  chain = [
    (runs / 'whole', tmp_path / 'lora', lora),
    (tmp_path / 'lora', tmp_path / 'again', lora),
    (tmp_path / 'lora', tmp_path / 'prompts', PFTS),
  ]
  for start, folder, fields in chain:
    train(folder, fields | {'start_from': str(start)}, rounds=1)
    shape = 32, 16, 3
    config = whole_network.pinned(fr.load(folder).config, folder)
    first = fr.load(folder, 0).variables
    found = jax.device_get(build.merged(config, first, shape))
    expected, _ = trees.split(whole(start), tuning.BACKBONE)
    for name, value in expected.items():
      np.testing.assert_allclose(found[name], value, atol=1e-6)
  with pytest.raises(errors.ConfigError, match='set the fields model.tune'):
    start = {'start_from': str(tmp_path / 'lora'), 'model.tune_rank': 2}
    train(tmp_path / 'other', lora | start)


@pytest.mark.slow
def test_another_method_trains_prompts_in_the_same_way(tmp_path):
  """Its local model and its style are new, since they are states."""
  local = {'local.batch': 8, 'local.identities': 4}
  prompts = {'vit.part_prompts': (1, 1, 1, 2)}
  train(tmp_path / 'a', local | prompts, 'dacs:smoke', rounds=1)
  fields = local | PFTS | {'start_from': str(tmp_path / 'a')}
  results = train(tmp_path / 'b', fields, 'dacs:smoke')
  assert np.isfinite(results['evaluation'][-1]['metrics']['mAP'])
  before, after = whole(tmp_path / 'a'), whole(tmp_path / 'b')
  for name in trees.split(before, tuning.BACKBONE)[0]:
    assert 'prompt' in name or (before[name] == after[name]).all()
