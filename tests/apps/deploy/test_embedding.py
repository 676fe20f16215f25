"""The exported function is the one that the evaluation ranks."""

import numpy as np
import pytest
import toy_embedding
import toy_run

import fedreid_jax as fr
from fedreid_jax.apps.deploy import embedding, exchange
from fedreid_jax.data import load as data_load


@pytest.mark.slow
def test_the_embedding_is_the_one_that_is_ranked(tiny_run, monkeypatch):
  target, features = toy_run.ranked(tiny_run)
  pixels = target.images()
  monkeypatch.setattr(data_load, 'load', lambda *_, **__: pytest.fail('read'))
  found = embedding.load(tiny_run)
  assert (found.name, found.step, found.dtype) == ('global', 1, 'float32')
  assert [*found.inputs] == ['images']
  got = exchange.lowered(found).call(pixels)
  np.testing.assert_allclose(got, features, rtol=0, atol=1e-5)
  visible = np.zeros(len(pixels), np.int32)
  np.testing.assert_allclose(
    found.evaluate(pixels, visible), features, atol=1e-5
  )


@pytest.mark.slow
def test_only_the_weights_that_the_embedding_needs_are_in_it(tiny_run):
  found = embedding.load(tiny_run)
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
def test_measured_moments_are_in_it(trained, tmp_path, monkeypatch, rule):
  # Identities that no client has are not measured either.
  fields = BOTH if rule == 'modality' else {'evaluation.validation': 0.5}
  workdir = trained(tmp_path, **{'evaluation.batch_stats': rule}, **fields)
  target, features = toy_run.ranked(workdir)
  pixels, kinds = target.images(), target.modalities
  found = embedding.load(workdir)
  assert [*found.inputs] == ['images', 'modalities'][: 1 + (rule == 'modality')]
  inputs = [pixels, kinds][: len(found.inputs)]
  got = exchange.lowered(found).call(*inputs)
  np.testing.assert_allclose(got, features, rtol=0, atol=1e-5)
  np.testing.assert_allclose(
    found.evaluate(pixels, kinds), features, rtol=0, atol=1e-5
  )
  running = fr.load(workdir).embed(pixels, kinds)
  assert np.abs(running - features).max() > 1e-3


@pytest.mark.slow
def test_bfloat16_can_be_computed_in_float32(trained, tmp_path):
  workdir = trained(tmp_path, **{'model.dtype': 'bfloat16'})
  pixels = toy_embedding.pixels(3)
  found = embedding.load(workdir)
  assert 'bf16' in str(found.program)
  exact = embedding.load(workdir, dtype='float32')
  assert 'bf16' not in str(exact.program)
  wanted = found.evaluate(pixels, np.zeros(3, np.int32))
  got = exchange.lowered(exact).call(pixels)
  assert 0 < np.abs(wanted - got).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.slow
def test_added_parameters_are_in_the_kernels(trained, tmp_path):
  workdir = trained(tmp_path, **{'model.tune': 'lora'})
  target, features = toy_run.ranked(workdir)
  pixels = target.images()
  found = embedding.load(workdir)
  assert found.variables and not [n for n in found.variables if 'lora' in n]
  got = exchange.lowered(found).call(pixels)
  np.testing.assert_allclose(got, features, rtol=0, atol=1e-5)
  np.testing.assert_allclose(fr.load(workdir).embed(pixels), got, atol=1e-5)


def test_each_modality_has_its_own_moments():
  kernel, one, two = (np.full(2, k, np.float32) for k in (1, 2, 3))
  models = [{'params/a': kernel, 'batch_stats/a': x} for x in (one, two)]
  joined = embedding.join_moments(models)
  assert [*joined] == ['params/a', 'batch_stats/a', 'infrared:batch_stats/a']

  def embed(variables, images, modalities):
    return images * variables['params/a'] * variables['batch_stats/a']

  images = np.ones((3, 2), np.float32)
  for chosen, wanted in ((models, [2, 3, 2]), (models[:1], [2, 2, 2])):
    got = embedding.select_moments(embed)(
      embedding.join_moments(chosen), images, np.array([0, 1, 0])
    )
    np.testing.assert_array_equal(got[:, 0], wanted)
