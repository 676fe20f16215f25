import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from fedreid_jax import errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.core import types
from fedreid_jax.models import dns, flops, networks, reid, resnet
from fedreid_jax.models.layers import inserted
from fedreid_jax.training import build

SHAPE, IDENTITIES = (288, 144, 3), 395


def network(modality_specific_stages=0, plugins=()):
  """ResNet-50 of last stride 1 with GeM and BNNeck, and the domain parts."""
  backbone = resnet.ResNet(
    'resnet50',
    last_stride=1,
    modality_specific_stages=modality_specific_stages,
    plugins=plugins,
  )
  return reid.ReIDNet(backbone, IDENTITIES, 'gem', 'bnneck')


def dns_network(variant):
  specific = dns.MODALITY_SPECIFIC_STAGES if variant == 'two_stream' else 0
  inner = network(specific, (dns.plugins(),))
  return dns.DNS(inner, IDENTITIES, dns.DOMAINS[variant])


def count(module):
  return flops.count(networks.wrap(module, SHAPE), SHAPE)


def resnet50_multiply_adds(height, width):
  """Convolutions of ResNet-50 with last stride 1, written out."""
  area = height * width // 4
  total = area * 64 * 3 * 49
  area, channels = area // 4, 64
  for stage, blocks in enumerate((3, 4, 6, 3)):
    inner = 64 * 2**stage
    for block in range(blocks):
      before = area
      if block == 0 and stage in (1, 2):
        area //= 4
      total += before * channels * inner + area * inner * inner * 9
      total += area * inner * 4 * inner
      if block == 0:
        total += area * channels * 4 * inner
      channels = 4 * inner
  return total


def test_resnet50_costs_what_the_paper_says():
  """23.50 M and 5.17 G (L2RW, table 2): trunk and neck, no classifier.

  The paper's 5.17 G also has four operations for each of the 10.5 M numbers
  that are normalised, 0.8 % of it.
  """
  found = count(network())
  assert found.parameters == 23_508_032 + 2 * 2048
  assert found.multiply_adds == resnet50_multiply_adds(288, 144)
  assert found.multiply_adds + 4 * 10.494e6 == pytest.approx(5.172e9, rel=1e-4)
  assert found.multiply_adds == pytest.approx(5.17e9, rel=0.01)
  assert found.parameters == pytest.approx(23.5e6, rel=0.001)


def test_agw_costs_what_the_paper_says():
  found = count(network(1, (inserted.after_last_blocks(),)))
  assert found.parameters == pytest.approx(23.55e6, rel=2e-4)
  assert found.multiply_adds == pytest.approx(5.18e9, rel=0.01)


@pytest.mark.slow
def test_dns_costs_what_the_paper_says():
  """25.45 M: nothing that only training needs. One image takes one stream."""
  two, one = count(dns_network('two_stream')), count(dns_network('one_stream'))
  assert two.parameters == pytest.approx(25.45e6, rel=1e-4)
  assert two.parameters - one.parameters == 9_536 + 215_808 + 1_219_584
  assert two.multiply_adds == one.multiply_adds
  assert two.multiply_adds == pytest.approx(5.18e9, rel=0.01)


@pytest.mark.parametrize(
  'recipe, parameters, billions',
  [('lba', 23_521_664, 5.13), ('deen', 26_546_720, 8.81)],
)
def test_lba_and_deen_cost_what_the_results_say(recipe, parameters, billions):
  """DEEN's branches are for training: at test time its own feature is taken."""
  c = validation.validate(recipes.recipe(recipe, 'paper'))
  shape = (c.data.height, c.data.width, 3)
  model = build.network(c, IDENTITIES, shape)
  found = flops.count(model, shape)
  assert found.parameters == parameters
  assert found.multiply_adds == pytest.approx(1e9 * billions, rel=1e-3)


class Loop(nn.Module):
  """A matrix product five times over, and one that nothing depends on."""

  length: int | None = 5

  @nn.compact
  def __call__(self, images, ctx, num_identities):
    kernel = self.param('kernel', nn.initializers.ones, (3, 3))
    unused = self.param('unused', nn.initializers.ones, (3, 7))
    x = images.reshape(-1, 3)
    if self.length is None:
      x = jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ kernel, x)
    else:
      x, _ = jax.lax.scan(
        lambda x, _: (x @ kernel, None), x, length=self.length
      )
    return types.Outputs(x, x, x @ unused)


def test_loops_and_what_the_embedding_does_not_need():
  model = networks.wrap(Loop(), (2, 1, 3))
  assert flops.count(model, (2, 1, 3)) == (9, 5 * 2 * 9)
  with_scores = flops.count(model, (2, 1, 3), classifier=True)
  assert with_scores == (9 + 21, 5 * 2 * 9 + 2 * 21)


def test_a_loop_of_unknown_length_is_refused():
  model = networks.wrap(Loop(length=None), (2, 1, 3))
  with pytest.raises(errors.ConfigError, match='while'):
    flops.count(model, (2, 1, 3))


def test_bfloat16_costs_the_same():
  full, half = (
    count(reid.ReIDNet(resnet.ResNet('resnet18', dtype=dtype), IDENTITIES))
    for dtype in (jnp.float32, jnp.bfloat16)
  )
  assert half == full
