"""Changes of networks by components, alone and one after another."""

import jax
import jax.numpy as jnp
import pytest
import toy
from flax import linen as nn

from fedreid_jax import errors
from fedreid_jax.algorithms import agw, deen, dns, fedsr, lba, mixstyle, snr
from fedreid_jax.models import networks, resnet
from fedreid_jax.models.forward import ForwardCtx

SMALL = {'name': 'resnet18', 'width': 1 / 32, 'small_stem': True}


def build(*components, **fields):
  model = toy.replaced(toy.toy_config().model, fields)
  changes = [component.make().network for component in components]
  return networks.build(model, 5, None, changes)


def names(network):
  images = jnp.zeros((2, 16, 16, 1))
  init = jax.eval_shape(
    lambda: network.init(jax.random.key(0), images, ForwardCtx(False))
  )
  return {
    '/'.join(k.key for k in p) for p, _ in jax.tree.leaves_with_path(init)
  }


def test_changes_are_composed_in_order():
  """A later component reaches the backbone inside an earlier one's module."""
  both = build(fedsr, snr, mixstyle)
  assert len(both.network.backbone.plugins) == 2
  found, plain = names(both), names(build())
  assert plain < found
  assert names(build(fedsr)) | names(build(snr)) == found
  assert found == names(build(mixstyle, snr, fedsr))


@pytest.mark.parametrize(
  'component, inserted',
  [(agw, 'non_local_2_0'), (dns, 'hss_3'), (deen, 'squeeze1_1'), (lba, '')],
)
def test_resnets_only(component, inserted):
  found = names(build(component, **SMALL, modality_specific_stages=1))
  assert any(f'/{inserted}' in name for name in found)
  with pytest.raises(errors.ConfigError, match='cannot change.*ConvNet'):
    build(component)
  with pytest.raises(errors.ConfigError, match='batch normalisation only'):
    build(component, **SMALL, norm='group')


@pytest.mark.parametrize('component', [deen, lba])
def test_another_kind_of_resnet_has_the_fields_of_the_first(component):
  fields = SMALL | {'last_stride': 2, 'modality_specific_stages': 2}
  found, plain = build(component, **fields).backbone, build(**fields).backbone
  assert type(found) is not resnet.ResNet and type(plain) is resnet.ResNet
  for name in ('depth', 'width', 'small_stem', 'last_stride', 'dtype'):
    assert getattr(found, name) == getattr(plain, name)
  assert found.modality_specific_stages == 2


@pytest.mark.parametrize('pair', [(deen, lba), (lba, deen)])
def test_two_components_that_replace_the_resnet_are_refused(pair):
  with pytest.raises(errors.ConfigError, match='both replace'):
    build(*pair, **SMALL)


@pytest.mark.parametrize('pair', [(dns, fedsr), (fedsr, dns)])
def test_two_components_around_the_network_are_refused(pair):
  with pytest.raises(errors.ConfigError, match='both put a module around'):
    build(*pair, **SMALL, modality_specific_stages=3)


def test_a_network_of_another_kind_is_refused():
  with pytest.raises(errors.ConfigError, match='cannot change a network Dense'):
    snr.make().network(nn.Dense(3))
