"""What a configuration may hold: names, types, ranges, and fields together."""

import math
from collections.abc import Mapping
from typing import Any

from fedreid_jax import errors
from fedreid_jax.config import parsing, rules, schema
from fedreid_jax.core.patterns import Pattern

NATURAL = (0, math.inf)
INT32, FLOAT32 = 2**31 - 1, 3.4e38  # the largest numbers of a device
RANGES: Mapping[str, tuple[float, float]] = {
  'seed': (0, 2**31 - 1),
  'rounds': (1, math.inf),
  'fraction': (1e-9, 1),
  'checkpoint_every': (1, math.inf),
  'data.height': (8, 4096),
  'data.width': (8, 4096),
  'data.max_pixels': (64, 89_478_485),  # what Pillow opens
  'data.world_seed': (0, 2**31 - 1),
  'data.identities': (1, math.inf),
  'data.cameras': NATURAL,
  'data.infrared': NATURAL,
  'data.brightness_correlation': (0, 1),
  'data.shots': (1, math.inf),
  'data.target_identities': (1, math.inf),
  'data.target_shots': (2, math.inf),
  'data.shots_per_camera': (1, math.inf),
  'data.trials': (1, 10),
  'data.num_clients': (1, math.inf),
  'data.concentration': (1e-3, math.inf),
  'model.width': (1 / 64, 16),
  'model.modality_specific_stages': (0, 5),
  'model.last_stride': (1, 2),
  'model.bottleneck': (1, math.inf),
  'model.dropout': (0, 0.999),
  'local.batch': (2, math.inf),
  'local.epochs': (1, math.inf),
  'local.steps': NATURAL,
  'local.identities': (2, math.inf),
  'local.data_pass_batch': (1, math.inf),
  'optim.lr': NATURAL,
  'optim.momentum': (0, 0.9999),
  'optim.weight_decay': NATURAL,
  'optim.gamma': NATURAL,
  'optim.warmup': NATURAL,
  'loss.identity': NATURAL,
  'loss.label_smoothing': (0, 0.999),
  'loss.triplet': NATURAL,
  'loss.margin': NATURAL,
  'augment.pad': NATURAL,
  'augment.flip': (0, 1),
  'augment.erase': (0, 1),
  'augment.erase_tries': (1, 1000),
  'augment.grey': (0, 1),
  'augment.channel': (0, 1),
  'loss.circle': NATURAL,
  'loss.circle_margin': NATURAL,
  'loss.circle_gamma': NATURAL,
  'loss.weighted_triplet': NATURAL,
  'local_expert.temperature': (1e-6, math.inf),
  'noise.beta': NATURAL,
  'snr.dist_scale': NATURAL,
  'dppt.lam': NATURAL,
  'dppt.k': (1, math.inf),
  'dns.tau': (0, 1),
  'dns.alignment': NATURAL,
  'dns.distillation': NATURAL,
  'deen.lam_cpm': NATURAL,
  'deen.lam_ort': NATURAL,
  'deen.margin': NATURAL,
  'deen.cpm_margin': NATURAL,
  'lba.lam': NATURAL,
  'lba.margin': NATURAL,
  'evaluation.every': (1, math.inf),
  'evaluation.batch': (1, math.inf),
  'execution.width': NATURAL,
  'execution.devices': NATURAL,
  'execution.image_budget_mb': NATURAL,
  'fedprox.mu': NATURAL,
  'fednova.mu': NATURAL,
  'moon.mu': NATURAL,
  'moon.temperature': (1e-6, math.inf),
  'fedatt.epsilon': (1e-6, math.inf),
  'fedatt.noise_scale': NATURAL,
  'fedopt.lr': NATURAL,
  'fedopt.momentum': (0, 0.9999),
  'fedopt.beta2': (0, 0.999999),
  'fedopt.tau': (1e-12, math.inf),
  'cdw.images': (1, math.inf),
  'kd.every': (1, math.inf),
  'kd.lr': NATURAL,
  'kd.batch': (2, math.inf),
  'kd.momentum': (0, 0.9999),
  'kd.weight_decay': NATURAL,
  'client_clustering.images': (1, math.inf),
  'dfh.lam': NATURAL,
  'dfh.margin': NATURAL,
  'dfh.min_identities': (1, math.inf),
}
CHOICES: Mapping[str, tuple[str, ...]] = {
  'batch_stats_rule': ('average', 'first_client', 'keep_server'),
  'data.source': ('synthetic', 'folder', 'datasets'),
  'data.task': ('retrieval', 'classification'),
  'data.client_split': (
    'by_dataset',
    'by_camera',
    'by_identity',
    'centralised',
    'standalone',
    'iid',
    'dirichlet',
    'camera_independent',
    'entity_independent',
    'entity_shared',
  ),
  'data.labels': ('', 'concat', 'max', 'global'),
  'data.direction': ('infrared-visible', 'visible-infrared'),
  'data.search': ('all', 'indoor'),
  'data.gallery_sampling': ('agw', 'official'),
  'data.channels': ('rgb', 'grey'),
  'data.on_bad_image': ('error', 'skip'),
  'data.resample': ('bicubic', 'bilinear', 'lanczos'),
  'model.name': (
    'resnet18',
    'resnet34',
    'resnet50',
    'resnet101',
    'resnet32',
    'convnet',
  ),
  'model.variant': (
    'plain',
    'snr',
    'snr_entropy',
    'agw',
    'dns',
    'deen',
    'lba',
  ),
  'model.pool': ('gap', 'gem', 'flatten'),
  'model.neck': ('none', 'bn', 'bnneck', 'bottleneck', 'mapping'),
  'model.dtype': ('float32', 'bfloat16'),
  'local.sampler': (
    'uniform',
    'pk',
    'pk_replace',
    'pk_torchreid',
    'pk_modality',
    'pk_caj',
  ),
  'augment.channel_kinds': ('exchange', 'copy', 'grey', 'adapt'),
  'augment.infrared': ('same', 'adapt', 'hue'),
  'augment.copies': ('', 'exchange', 'copy', 'grey', 'adapt'),
  'optim.name': ('sgd', 'adam'),
  'evaluation.protocol': (
    '',
    'market',
    'fedreid_legacy',
    'cuhk03_classic',
    'single_shot',
    'sysu',
    'regdb',
    'llcm',
    'cuhk_sysu',
  ),
  'optim.schedule': ('constant', 'step', 'linear', 'cosine'),
  'scaffold.weights': ('size', 'uniform'),
  'loss.triplet_on': ('embedding', 'feature'),
  'evaluation.metric': ('euclidean', 'cosine'),
  'evaluation.feature': ('embedding', 'feature'),
  'evaluation.batch_stats': ('running', 'source'),
}


def validate(config: Any) -> Any:
  """Returns the configuration if every field can be run.

  Raises:
    ConfigError: naming the field, what it holds and what it may hold.
  """
  found, known = parsing.flatten(config), parsing.flatten(schema.default())
  for name in sorted(found.keys() | known.keys()):
    if name not in known:
      hint = parsing.hint(name, known)
      raise errors.ConfigError('unknown field', name, hint)
    if name not in found:
      raise errors.ConfigError('field is missing', name, 'start from default()')
    _check_type(name, found[name], known[name])
  for name, (low, high) in RANGES.items():
    if not low <= found[name] <= high:
      raise errors.ConfigError(
        f'{found[name]} is out of range', name, f'between {low} and {high}'
      )
  for name, choices in CHOICES.items():
    if found[name] not in choices:
      raise errors.ConfigError(
        f'unknown choice {found[name]!r}', name, f'one of {", ".join(choices)}'
      )
  _check_patterns(config)
  _check_together(config)
  return config


def _check_type(name: str, value: Any, like: Any) -> None:
  kinds: tuple[type, ...] = (type(like),)
  if isinstance(like, float):
    kinds = (float, int)
  if not isinstance(value, kinds) or (
    isinstance(value, bool) and not isinstance(like, bool)
  ):
    raise errors.ConfigError(
      f'{value!r} is {type(value).__name__}',
      name,
      f'give {type(like).__name__}',
    )
  if isinstance(like, tuple):
    elements: Any = value
    for element in elements:
      _check_element(name, element)
  else:
    _check_number(name, value)


def _check_number(name: str, value: Any) -> None:
  """Refuses numbers that what computes with them cannot hold."""
  if isinstance(value, int) and abs(value) > INT32:
    raise errors.ConfigError(
      'a whole number of more than 32 bits', name, f'at most {INT32}'
    )
  if isinstance(value, float) and not abs(value) <= FLOAT32:
    raise errors.ConfigError(
      f'{value} is not finite in float32', name, 'give a smaller number'
    )


ELEMENTS: Mapping[str, tuple[type, ...]] = {
  'components': (str,),
  'data.sources': (str,),
  'data.targets': (str,),
  'data.mean': (float,),
  'data.std': (float,),
  'model.features': (int,),
  'optim.lr_multipliers': (str, float),
  'optim.milestones': (float,),
  'optim.points': (float, float),
  'augment.erase_fill': (float,),
  'augment.erase_area': (float,),
  'evaluation.ranks': (int,),
  'evaluation.ensemble': (str,),
  'snr.weights': (float,),
  'snr.identity_weights': (float,),
  'dfh.alpha': (float,),
}


def _check_element(name: str, element: Any) -> None:
  """Checks one element of a tuple, or of a tuple of tuples."""
  kinds = ELEMENTS[name]
  parts = element if len(kinds) > 1 else (element,)
  if not isinstance(parts, tuple) or len(parts) != len(kinds):
    raise errors.ConfigError(
      f'{element!r} has not {len(kinds)} parts',
      name,
      'see fedreid_jax/config/schema.py',
    )
  for part, kind in zip(parts, kinds, strict=True):
    wide = (float, int) if kind is float else (kind,)
    if not isinstance(part, wide) or isinstance(part, bool):
      raise errors.ConfigError(
        f'{part!r} is {type(part).__name__}', name, f'give {kind.__name__}'
      )
    _check_number(name, part)
    if kind is int and part < 0:
      raise errors.ConfigError(f'{part} is below 0', name, 'give more')


def _check_patterns(c: Any) -> None:
  """Checks regular expressions, those over paths for their one group."""
  paths = ('data.identity_pattern', 'data.camera_pattern')
  patterns = [(name, c.data[name[5:]], 1) for name in paths]
  patterns.append(('fedpav.shared', c.fedpav.shared, 0))
  patterns += [
    ('optim.lr_multipliers', pattern, 0)
    for pattern, _ in c.optim.lr_multipliers
  ]
  for name, pattern, groups in patterns:
    if Pattern(pattern, name).groups < groups:
      raise errors.ConfigError(
        f'{pattern!r} has no group', name, 'put brackets round what counts'
      )


def _check_together(c: Any) -> None:
  """Checks fields that depend on each other."""
  channels = 3 if c.data.channels == 'rgb' else 1
  classifies = c.data.task == 'classification'
  deterministic = c.execution.deterministic and c.execution.width != 1
  own: tuple[tuple[Any, str, str, str], ...] = (
    (not c.name or '/' in c.name, 'name', repr(c.name), 'one plain word'),
    (not c.components, 'components', 'no component', "start with 'fedpav'"),
    (
      len(c.data.mean) != channels or len(c.data.std) != channels,
      'data.mean',
      f'{len(c.data.mean)} means for {channels} channels',
      'give one mean and one std a channel',
    ),
    (min((*c.data.std, 1)) <= 0, 'data.std', 'std of 0', 'above 0'),
    (
      c.local.sampler != 'uniform' and c.local.batch % c.local.identities > 0,
      'local.batch',
      f'{c.local.batch} images for {c.local.identities} identities',
      'a multiple of local.identities',
    ),
    (
      deterministic,
      'execution.width',
      f'width {c.execution.width} changes bits',
      'set execution.deterministic=False',
    ),
    (
      c.optim.schedule == 'linear' and len(c.optim.points) < 2,
      'optim.points',
      f'{len(c.optim.points)} points',
      'give at least two (round, factor)',
    ),
    (
      classifies and c.data.source == 'folder',
      'data.task',
      'a folder has no test images of the classes it trains on',
      "classify in the world 'datasets' or 'synthetic'",
    ),
    (
      classifies and c.data.labels in ('concat', 'max'),
      'data.labels',
      f'{c.data.labels!r} lets clients number their own classes',
      "set it to ''",
    ),
    (
      not {*c.evaluation.ensemble} <= {'concat', 'average'},
      'evaluation.ensemble',
      f'unknown choice {c.evaluation.ensemble}',
      "'concat', 'average' or both",
    ),
    (
      not c.evaluation.ranks or min(c.evaluation.ranks) < 1,
      'evaluation.ranks',
      f'{c.evaluation.ranks}',
      'ranks from 1 up',
    ),
  )
  for wrong, where, what, fix in (*own, *rules.rules(c)):
    if wrong:
      raise errors.ConfigError(what, where, fix)
