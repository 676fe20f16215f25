"""Claims about methods of other papers, and a table of adaptation.

No paper has tried these methods in this setting, so that no published figure
can be compared: the statements are those of the methods' papers, about other
data. Their trials are those of DFH: the same routes and weights. Those of
DP-SGD have the first of these routes.
"""

import functools
from collections.abc import Callable, Sequence

from fedreid_jax.apps.papers.tables.declare import (
  ALL,
  ROUTES,
  Arm,
  Claim,
  NearClaim,
  Route,
  Row,
  SideClaim,
  Table,
  route,
)
from fedreid_jax.apps.papers.tables.dfh import BASE, DFH
from fedreid_jax.data.synthetic import versions

NO_FIGURE = 'no figure for this setting'
MOMENTS = 'evaluation.batch_stats=target'
CAMERAS = 'evaluation.camera_norm=standardise'
LABELLED = Arm('fedpav:rendered,model.neck=bnneck')
CLUSTERS = Arm('cluster_contrast:rendered')
ALONE = 'components=("standalone","cluster_contrast")'
FULL = Arm('fedpav:rendered')
FULL_VIT = Arm(f'{FULL.recipe},model.name=vit,model.pretrained=vit-synthetic')
PARTS = 'vit.part_prompts=(2,2,2,4)'
TUNED = f'{PARTS},model.trained=.*prompt'
# Few parameters and small batches, because both need less noise.
PRIVATE = (
  'dpsgd:rendered,local.identities=6,local.batch=24,'
  'dpsgd.trainable=params/(backbone/bn|neck|classifier),privacy.secret=seed'
)
CLIPPED = 'dpsgd.epsilon=0.0,dpsgd.noise=0.0'


# Cameras without labels that adapt the model of a source. All rows have the
# network and the optimiser of the recipe of Fed-Protoid.
ADAPTATION = 'configs/fed_protoid.py'
# A source, and the domain whose cameras adapt.
DOMAINS = {'synthetic': ('plaza', 'mall'), 'paper': ('msmt17', 'market1501')}
AS_IT_IS = 'No adaptation'
SOURCE_ONLY = (
  *('components=("fedpav",)', 'data.unlabelled=()', 'data.undivided=()'),
  'data.client_split=by_dataset',
)
CAMERAS_ONLY = (
  *('components=("fedpav","cluster_contrast")', 'data.undivided=()'),
  'data.unlabelled=("all",)',
)
# Training from random weights, where the recipe adapts a trained model.
FROM_NOTHING = (
  *('optim.name=sgd', 'optim.lr=0.05', 'local.batch=32', 'rounds=15'),
  *('optim.schedule=step', 'optim.milestones=(0.5,0.75)'),
)


# The clusters of a camera that has few images of a person.
NEIGHBOURS = (
  *('cluster_contrast.k1=10', 'cluster_contrast.k2=3'),
  'cluster_contrast.min_samples=2',
)
PROTOTYPES = Arm('fed_protoid:rendered')


def _adapted(source: str, cameras: str) -> Route:
  """A route on which the cameras of a domain adapt a model of another one."""
  own = f'data.undivided={(source,)!r}', f'data.unlabelled={(cameras,)!r}'
  return route(f'{source} {cameras}', cameras, *own)


def _of_domain(number: int, *more: str) -> dict[str, tuple[str, ...]]:
  """Changes that keep one of the domains, and more changes of all presets."""
  own = {k: (f'data.sources={(x[number],)!r}',) for k, x in DOMAINS.items()}
  return own | {ALL: more}


def _source(*more: str) -> dict[str, tuple[str, ...]]:
  own = _of_domain(0, *SOURCE_ONLY, *more)
  return own | {'synthetic': (*own['synthetic'], *FROM_NOTHING)}


def _clusters() -> dict[str, tuple[str, ...]]:
  own = _of_domain(1, *CAMERAS_ONLY)
  return own | {'synthetic': (*own['synthetic'], *NEIGHBOURS)}


TABLES = (
  Table(
    'others/adaptation',
    'adapting a model to cameras without labels',
    (
      Row(AS_IT_IS, ADAPTATION, _source()),
      Row('Target moments', ADAPTATION, _source(MOMENTS)),
      Row('Cluster Contrast', ADAPTATION, _clusters(), starts_from=AS_IT_IS),
      Row('Fed-Protoid', ADAPTATION, starts_from=AS_IT_IS),
    ),
    setting={'synthetic': ('rounds=10',)},
    baseline=AS_IT_IS,
    note='Queries and gallery are other persons of the domain whose cameras '
    'adapt.',
  ),
)


def _changed(arm: Arm, change: str) -> Arm:
  return Arm(f'{arm.recipe},{change}')


def _claim(
  name: str,
  source: str,
  text: str,
  arm: Arm,
  base: Arm = BASE,
  make: Callable[..., Claim] = Claim,
  routes: Sequence[Route] = ROUTES,
) -> Claim:
  return make(name, source, text, NO_FIGURE, arm, base, routes)


def _tuned(
  full: Arm, make: Callable[..., Claim], *ways: tuple[str, str, str]
) -> list[Claim]:
  """The claims of ways of tuning: name, subject and changes of each."""
  text = 'are near full training.'
  return [
    _claim(
      *(name, 'tuning', f'{subject} {text}'),
      *(_changed(full, changes), full, make),
    )
    for name, subject, changes in ways
  ]


def _private(name: str, epsilon: int, where: str, world: str) -> Claim:
  """The claim that an epsilon costs little in a version of the world."""
  private = Arm(f'{PRIVATE},data.source={world}')
  arm = _changed(private, f'dpsgd.epsilon={epsilon}.0')
  text = f'Epsilon {epsilon} is near no noise{where}.'
  given = f'{name}_{epsilon}', 'DP-SGD', text
  return _claim(*given, arm, _changed(private, CLIPPED), NearClaim, ROUTES[:1])


CLAIMS = (
  *_tuned(
    *(FULL, functools.partial(NearClaim, seeds=5)),
    ('adapters', 'Adapters', 'model.tune=adapter'),
    ('lora', 'Low-rank matrices', 'model.tune=lora'),
    ('norms', 'Scales and biases', 'model.trained=.*(scale|bias)'),
  ),
  *_tuned(
    *(FULL_VIT, NearClaim),
    (
      *('vit_lora', 'LoRA of a ViT'),
      'model.tune=lora,model.tune_at=.*attn.*',
    ),
    (
      *('vit_prompts', 'Prompts of a ViT'),
      'vit.prompts=8,model.trained=.*prompt',
    ),
  ),
  _claim(
    *('sscu_dacs', 'SSCU'),
    'A memory of identities improves DACS.',
    *(Arm('sscu:rendered'), Arm('dacs:rendered,dacs.lam=5.0'), SideClaim),
  ),
  _claim(
    *('bapm', 'FedBPrompt'),
    'Prompts of body parts improve a ViT.',
    *(_changed(FULL_VIT, PARTS), FULL_VIT, SideClaim),
  ),
  _claim(
    *('pfts', 'FedBPrompt'),
    'Prompts alone improve a trained ViT.',
    Arm(f'{FULL_VIT.recipe},{TUNED}', start=FULL_VIT.recipe),
    *(FULL_VIT, SideClaim),
  ),
  _claim(
    *('published_start', 'published weights'),
    'Weights of rendered persons improve FedPav.',
    Arm('fedpav:imagenet,model.pretrained=mobilenet_v2-synthetic'),
    *(Arm('fedpav:imagenet'), SideClaim),
  ),
  *(_private('private', e, '', versions.UNVERSIONED) for e in (8, 1)),
  *(
    _private('first_world_private', e, ', first world', versions.FIRST)
    for e in (8, 1)
  ),
  _claim(
    *('target_moments', 'AdaBN'),
    'Moments of the gallery improve FedPav.',
    _changed(BASE, MOMENTS),
  ),
  _claim(
    *('target_moments_dfh', 'AdaBN'),
    'Moments of the gallery improve DFH.',
    *(_changed(DFH, MOMENTS), DFH, SideClaim),
  ),
  _claim(
    *('camera_norm', 'features by camera'),
    'Features that are standardised by camera improve FedPav.',
    _changed(BASE, CAMERAS),
  ),
  _claim(
    *('camera_norm_dfh', 'features by camera'),
    'DFH improves FedPav with standardised cameras.',
    *(_changed(DFH, CAMERAS), _changed(BASE, CAMERAS)),
  ),
  _claim(
    *('unlabelled', 'FedUReID'),
    'Federation without labels beats training alone.',
    *(CLUSTERS, Arm(f'cluster_contrast:rendered,{ALONE}', 'client')),
  ),
  _claim(
    *('dbscan', 'Cluster Contrast'),
    'DBSCAN beats merging pairs of clusters.',
    *(CLUSTERS, Arm('fedureid:rendered,fedureid.merge=0.1'), SideClaim),
  ),
  _claim(
    *('fed_protoid', 'Fed-Protoid'),
    'Prototypes of a source improve clusters of cameras.',
    PROTOTYPES,
    _changed(
      PROTOTYPES,
      ','.join(('components=("fedpav","cluster_contrast")', *NEIGHBOURS)),
    ),
    SideClaim,
    (
      _adapted('plaza', 'mall'),
      _adapted('mall', 'harbour'),
      _adapted('harbour', 'plaza'),
    ),
  ),
  _claim(
    *('labels', 'FedUReID'),
    'Labels improve the global model over clusters.',
    *(LABELLED, CLUSTERS, SideClaim),
  ),
)
