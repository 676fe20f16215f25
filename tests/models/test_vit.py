"""Vision transformers against an independent implementation in PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.core import trees
from fedreid_jax.models.backbones import vit


def torch_vit(options, num_tokens, channels=3):
  """Builds the network in PyTorch, with the names of timm."""
  torch = pytest.importorskip('torch')
  nn, size = torch.nn, vit.SIZES[options.size]

  class Attention(nn.Module):
    def __init__(self):
      super().__init__()
      self.qkv = nn.Linear(size.width, 3 * size.width)
      self.proj = nn.Linear(size.width, size.width)

    def forward(self, x):
      b, t, d = x.shape
      q, k, v = (
        y.reshape(b, t, size.heads, -1).transpose(1, 2)
        for y in self.qkv(x).chunk(3, -1)
      )
      y = nn.functional.scaled_dot_product_attention(q, k, v)
      return self.proj(y.transpose(1, 2).reshape(b, t, d))

  class Mlp(nn.Module):
    def __init__(self):
      super().__init__()
      self.fc1 = nn.Linear(size.width, 4 * size.width)
      self.fc2 = nn.Linear(4 * size.width, size.width)

    def forward(self, x):
      x = self.fc1(x)
      quick = x * torch.sigmoid(1.702 * x)
      return self.fc2(quick if options.quick_gelu else nn.functional.gelu(x))

  class Scale(nn.Module):
    def __init__(self):
      super().__init__()
      self.gamma = nn.Parameter(torch.ones(size.width))

    def forward(self, x):
      return x * self.gamma

  class Block(nn.Module):
    def __init__(self):
      super().__init__()
      self.norm1 = nn.LayerNorm(size.width, eps=1e-6)
      self.attn = Attention()
      self.norm2 = nn.LayerNorm(size.width, eps=1e-6)
      self.mlp = Mlp()
      if options.layer_scale:
        self.ls1, self.ls2 = Scale(), Scale()

    def forward(self, x):
      same = nn.Identity()
      x = x + getattr(self, 'ls1', same)(self.attn(self.norm1(x)))
      return x + getattr(self, 'ls2', same)(self.mlp(self.norm2(x)))

  class Net(nn.Module):
    def __init__(self):
      super().__init__()
      self.patch_embed = nn.Module()
      self.patch_embed.proj = nn.Conv2d(
        channels,
        size.width,
        size.patch,
        options.stride or size.patch,
        bias=not options.pre_norm,
      )
      self.cls_token = nn.Parameter(torch.zeros(1, 1, size.width))
      self.pos_embed = nn.Parameter(torch.zeros(1, num_tokens, size.width))
      if options.pre_norm:
        self.norm_pre = nn.LayerNorm(size.width, eps=1e-5)
      self.blocks = nn.ModuleList(Block() for _ in range(size.blocks))
      self.norm = nn.LayerNorm(size.width, eps=1e-6)

    def forward(self, x):
      x = self.patch_embed.proj(x).flatten(2).transpose(1, 2)
      x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
      x = x + self.pos_embed
      x = self.norm_pre(x) if options.pre_norm else x
      for block in self.blocks:
        x = block(x)
      return self.norm(x)[:, 0]

  return torch, Net()


def leaf(name):
  """The leaf of a tensor with timm's name."""
  *modules, last = name.split('.')
  if last == 'gamma':
    modules[-1] += '_gamma'
  elif modules and last == 'weight':
    norm = modules[-1].startswith('norm')
    modules.append('scale' if norm else 'kernel')
  else:
    modules.append(last)
  path = '.'.join(modules).replace('blocks.', 'blocks_')
  path = path.replace('patch_embed.proj', 'patch_embed_proj')
  return f'params/{path.replace(".", "/")}'


@pytest.mark.parametrize(
  'options, tokens',
  [
    (vit.Options(), 33),
    (vit.Options(stride=6), 51),
    (vit.Options(layer_scale=True), 33),
    (vit.Options(pre_norm=True, quick_gelu=True), 33),
  ],
  ids=['plain', 'overlapping', 'dinov2', 'clip'],
)
def test_outputs_are_those_of_pytorch(options, tokens):
  torch, reference = torch_vit(options, tokens)
  rng = np.random.default_rng(0)
  state = {
    n: rng.normal(0.0, 0.1, x.shape).astype(np.float32)
    for n, x in reference.state_dict().items()
  }
  reference.load_state_dict({n: torch.from_numpy(x) for n, x in state.items()})
  images = rng.normal(size=(2, 64, 32, 3)).astype(np.float32)
  network = vit.ViT(options)
  wanted = jax.eval_shape(
    lambda key: network.init(key, jnp.asarray(images), train=False),
    jax.random.key(0),
  )
  axes = {4: (2, 3, 1, 0), 2: (1, 0)}
  taken = {}
  for name, tensor in state.items():
    is_kernel = leaf(name).endswith('kernel')
    value = tensor.transpose(axes[tensor.ndim]) if is_kernel else tensor
    taken[leaf(name)] = jnp.asarray(value)
  shapes = {n: x.shape for n, x in trees.flatten(wanted).items()}
  assert {n: x.shape for n, x in taken.items()} == shapes
  maps, extras = network.apply(
    trees.unflatten(taken), jnp.asarray(images), train=False
  )
  with torch.no_grad():
    found = reference(torch.from_numpy(images.transpose(0, 3, 1, 2)))
  assert maps.shape == (2, 1, 1, 64) and not extras
  np.testing.assert_allclose(maps[:, 0, 0], found.numpy(), atol=1e-4)


def test_branches_are_skipped_in_training_only():
  network = vit.ViT(vit.Options(drop_path=0.9))
  images = jnp.ones((4, 32, 16, 3))
  variables = network.init(jax.random.key(0), images, train=False)

  def run(train, key=None):
    rngs = {} if key is None else {'dropout': jax.random.key(key)}
    return network.apply(variables, images, train=train, rngs=rngs)[0]

  np.testing.assert_array_equal(run(True), run(False))
  assert np.ptp(run(True, 1)[:, 0, 0], axis=0).max() > 0  # images differ
  np.testing.assert_array_equal(run(False, 1), run(False))
