"""Claims about methods of other papers.

No paper has tried these methods in this setting, so that no published figure
can be compared: the statements are those of the methods' papers, about other
data. Their trials are those of DFH: the same routes and weights.
"""

import functools
from collections.abc import Callable

from fedreid_jax.apps.papers.tables.declare import (
  ROUTES,
  Arm,
  Claim,
  NearClaim,
  SideClaim,
)
from fedreid_jax.apps.papers.tables.dfh import BASE, DFH

TABLES = ()
NO_FIGURE = 'no figure for this setting'
# The base has the loss of DFH. The first three methods are compared in their
# papers with plain training, and DACS with FedPav.
GENERALISATION = {
  'mixstyle': ('MixStyle', 'Mixed styles of a batch'),
  'ccst': ('CCST', 'Images in the styles of other clients'),
  'fedsr': ('FedSR', 'Simple representations'),
  'dacs': ('DACS', 'Images of a style transformation model'),
}
MOMENTS = 'evaluation.batch_stats=target'
CAMERAS = 'evaluation.camera_norm=standardise'
LABELLED = Arm('fedpav:trial,model.neck=bnneck')
CLUSTERS = Arm('cluster_contrast:trial')
ALONE = 'components=("standalone","cluster_contrast")'
# Every way of tuning has its own rate, chosen on other persons of the clients.
CONVNET = 'fedpav:trial,'
VIT = f'{CONVNET}model.name=vit,model.pretrained=vit-synthetic,'
FULL = Arm(f'{CONVNET}optim.lr=0.1')
FULL_VIT = Arm(f'{VIT}optim.lr=0.05')


def _changed(arm: Arm, change: str) -> Arm:
  return Arm(f'{arm.recipe},{change}')


def _claim(
  name: str,
  source: str,
  text: str,
  arm: Arm,
  base: Arm = BASE,
  make: Callable[..., Claim] = Claim,
) -> Claim:
  return make(name, source, text, NO_FIGURE, arm, base, ROUTES)


def _tuned(
  network: str,
  full: Arm,
  make: Callable[..., Claim],
  *ways: tuple[str, str, str],
) -> list[Claim]:
  """The claims of ways of tuning: name, subject and changes of each."""
  text = 'are near the training of all parameters.'
  return [
    _claim(
      *(name, 'tuning', f'{subject} {text}'),
      *(Arm(f'{network}{changes}'), full, make),
    )
    for name, subject, changes in ways
  ]


CLAIMS = (
  *(
    _claim(
      *(name, source, f'{subject} improve FedPav on unseen domains.'),
      Arm(f'{name}:trial'),
    )
    for name, (source, subject) in GENERALISATION.items()
  ),
  *_tuned(
    *(CONVNET, FULL, functools.partial(NearClaim, seeds=5)),
    ('adapters', 'Adapters', 'model.tune=adapter,optim.lr=0.2'),
    ('lora', 'Low-rank matrices', 'model.tune=lora,optim.lr=0.1'),
    (
      *('norms', 'Scales and biases'),
      'model.trained=.*(scale|bias),optim.lr=0.1',
    ),
  ),
  *_tuned(
    *(VIT, FULL_VIT, NearClaim),
    (
      *('vit_lora', 'Low-rank matrices of attention'),
      'model.tune=lora,model.tune_at=.*attn.*,optim.lr=0.05',
    ),
    (
      *('vit_prompts', 'Prompts of a transformer'),
      'vit.prompts=8,model.trained=.*prompt,optim.lr=0.1',
    ),
  ),
  _claim(
    *('target_moments', 'AdaBN'),
    'Moments of the gallery improve FedPav on unseen domains.',
    _changed(BASE, MOMENTS),
  ),
  _claim(
    *('target_moments_dfh', 'AdaBN'),
    'Moments of the gallery improve DFH on unseen domains.',
    *(_changed(DFH, MOMENTS), DFH, SideClaim),
  ),
  _claim(
    *('camera_norm', 'features by camera'),
    'Features that are standardised by camera improve FedPav.',
    _changed(BASE, CAMERAS),
  ),
  _claim(
    *('camera_norm_dfh', 'features by camera'),
    'DFH improves FedPav when both standardise features by camera.',
    *(_changed(DFH, CAMERAS), _changed(BASE, CAMERAS)),
  ),
  _claim(
    *('unlabelled', 'FedUReID'),
    'Clients without labels gain from a federation over training alone.',
    *(CLUSTERS, Arm(f'cluster_contrast:trial,{ALONE}', 'client')),
  ),
  _claim(
    *('dbscan', 'Cluster Contrast'),
    'DBSCAN of the images is better than merging pairs of clusters.',
    *(CLUSTERS, Arm('fedureid:trial,fedureid.merge=0.1'), SideClaim),
  ),
  _claim(
    *('labels', 'FedUReID'),
    'Labels improve the global model over clusters.',
    *(LABELLED, CLUSTERS, SideClaim),
  ),
)
