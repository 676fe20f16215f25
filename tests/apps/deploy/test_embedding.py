"""The exported function is the one that the evaluation ranks."""

import numpy as np
import pytest
import toy_embedding
import toy_run

import fedreid_jax as fr
from fedreid_jax.apps.deploy.exchange import embedding, jax_file
from fedreid_jax.data import load as data_load

TINY = {
  'model.features': (4, 8),
  'data.identities': 4,
  'data.target_identities': 4,
  'evaluation.batch': 16,
  'evaluation.flip': True,
  'execution.devices': 1,
}


def trained(folder, **fields):
  fr.train(fr.load_config('fedpav:smoke', TINY | fields, rounds=1), folder)
  return folder


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  fields = {'evaluation.feature': 'feature', 'model.neck': 'bnneck'}
  return trained(tmp_path_factory.mktemp('run'), **fields)


def test_the_embedding_is_the_one_that_is_ranked(workdir, monkeypatch):
  target, features = toy_run.ranked(workdir)
  pixels = target.images()
  monkeypatch.setattr(data_load, 'load', lambda *_, **__: pytest.fail('read'))
  found = embedding.load(workdir)
  assert (found.name, found.step, found.dtype) == ('global', 1, 'float32')
  assert [*found.inputs] == ['images']
  got = jax_file.lowered(found).call(pixels)
  np.testing.assert_allclose(got, features, rtol=0, atol=1e-5)
  visible = np.zeros(len(pixels), np.int32)
  np.testing.assert_allclose(
    found.evaluate(pixels, visible), features, atol=1e-5
  )


def test_only_the_weights_that_the_embedding_needs_are_in_it(workdir):
  found = embedding.load(workdir)
  assert found.variables
  assert all('/backbone/' in name for name in found.variables)
  sizes = sum(x.size for x in found.variables.values())
  consts = sum(np.size(x) for x in found.program.consts)
  assert consts < sizes


BOTH = {
  'data.sources': (
    'plaza:cameras=1,infrared=1',
    'campus:cameras=1,infrared=1',
  ),
  'data.targets': ('mall:cameras=1,infrared=1',),
}


@pytest.mark.slow
@pytest.mark.parametrize('rule', ['source', 'modality'])
def test_measured_moments_are_in_it(tmp_path, monkeypatch, rule):
  # Identities that no client has are not measured either.
  fields = BOTH if rule == 'modality' else {'evaluation.validation': 0.5}
  workdir = trained(tmp_path, **{'evaluation.batch_stats': rule}, **fields)
  target, features = toy_run.ranked(workdir)
  pixels, kinds = target.images(), target.modalities
  found = embedding.load(workdir)
  assert [*found.inputs] == ['images', 'modalities'][: 1 + (rule == 'modality')]
  inputs = [pixels, kinds][: len(found.inputs)]
  got = jax_file.lowered(found).call(*inputs)
  np.testing.assert_allclose(got, features, rtol=0, atol=1e-5)
  np.testing.assert_allclose(
    found.evaluate(pixels, kinds), features, rtol=0, atol=1e-5
  )
  running = fr.load(workdir).embed(pixels, kinds)
  assert np.abs(running - features).max() > 1e-3


@pytest.mark.slow
def test_bfloat16_can_be_computed_in_float32(tmp_path):
  workdir = trained(tmp_path, **{'model.dtype': 'bfloat16'})
  pixels = toy_embedding.pixels(3)
  found = embedding.load(workdir)
  assert 'bf16' in str(found.program)
  exact = embedding.load(workdir, dtype='float32')
  assert 'bf16' not in str(exact.program)
  wanted = found.evaluate(pixels, np.zeros(3, np.int32))
  got = jax_file.lowered(exact).call(pixels)
  assert 0 < np.abs(wanted - got).max() < 0.05 * np.abs(wanted).max()
