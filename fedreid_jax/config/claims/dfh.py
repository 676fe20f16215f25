"""Claims of DFH (P0)."""

from fedreid_jax.config.claims.declare import ROUTES, Arm, Claim

DFH = Arm('dfh:trial')
BASE = Arm('dfh:trial,components=("fedpav",)')
SOURCE = 'DFH, table'


def _ablation(name: str, changes: str, text: str, published: str, table: int):
  return Claim(
    name,
    f'{SOURCE} {table}',
    text,
    published,
    DFH,
    Arm(f'dfh:trial,{changes}'),
    ROUTES,
  )


CLAIMS = (
  Claim(
    'dfh',
    f'{SOURCE} 1',
    'Hallucinated features improve FedPav on unseen domains.',
    "mAP 71.7, 31.3, 27.2 against FedPav's 62.6, 25.4, 22.5",
    DFH,
    BASE,
    ROUTES,
    first=True,
  ),
  Claim(
    'snr_dfh',
    f'{SOURCE} 1',
    'Hallucinated features improve SNR on unseen domains.',
    "mAP 72.4, 33.2, 31.1 against SNR's 67.7, 28.3, 26.0",
    Arm('snr_dfh:trial'),
    Arm('snr:trial'),
    ROUTES,
  ),
  _ablation(
    'dfh_novel',
    'dfh.novel=none',
    'Statistics of novel domains improve those of the clients alone.',
    'mAP 31.3, 27.2 against 28.4, 24.1',
    2,
  ),
  _ablation(
    'dfh_dirichlet_mixup',
    'dfh.novel=dirichlet_mixup',
    'Mixed statistics are better than mixed features (Dirichlet).',
    'mAP 31.3, 27.2 against 29.1, 25.6',
    2,
  ),
  _ablation(
    'dfh_feature_mixup',
    'dfh.novel=feature_mixup',
    'Mixed statistics are better than mixed features of two.',
    'mAP 31.3, 27.2 against 27.8, 23.6',
    2,
  ),
  _ablation(
    'dfh_loss',
    'dfh.loss=identity',
    'The triplet of hallucinated features is better than their classification.',
    'mAP 31.3, 27.2 against 26.3, 20.4',
    5,
  ),
)
