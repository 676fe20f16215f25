"""Claims of DFH (P0)."""

from collections.abc import Sequence

from fedreid_jax.apps.papers.claims.declare import (
  ROUTES,
  SIDE_SEEDS,
  Arm,
  Claim,
  Route,
  route,
)

DFH = Arm('dfh:trial')
BASE = Arm('dfh:trial,components=("fedpav",)')
HALLUCINATED = Arm('dfh:trial,dfh.novel=none')
SNR = Arm('snr:trial')
SOURCE = 'DFH, table'
TWO_SOURCES = (
  route('plaza campus', 'mall park market'),
  route('mall park', 'harbour alley arcade'),
)
# Rows of table 4: mAP on CUHK03 and Market-1501; equal weights have 27.2 and
# 31.3. Each row is tried on one route.
ALPHAS = {
  (1.0, 2.0, 1.0): '26.9, 30.7',
  (2.0, 1.0, 1.0): '25.8, 29.8',
  (1.0, 1.0, 2.0): '26.4, 30.2',
}


def _ablation(
  name: str, arm: Arm, changes: str, text: str, published: str, table: int
) -> Claim:
  base = Arm(f'dfh:trial,{changes}')
  return Claim(name, f'{SOURCE} {table}', text, published, arm, base, ROUTES)


def _alpha(
  alpha: tuple[float, ...], published: str, routes: Sequence[Route]
) -> Claim:
  digits = [f'{x:.0f}' for x in alpha]
  return Claim(
    f'dfh_alpha_{"".join(digits)}',
    f'{SOURCE} 4',
    f'Weights ({", ".join(digits)}) of domains are near equal weights.',
    f'mAP {published} against 27.2, 31.3',
    Arm(f'dfh:trial,dfh.alpha={alpha}'),
    DFH,
    routes,
    claimed='equal',
    margin=3.0,
    seeds=SIDE_SEEDS,
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
    SNR,
    ROUTES,
  ),
  Claim(
    'dfh_or_snr',
    f'{SOURCE} 1',
    'Hallucinated features are better than SNR on unseen domains.',
    "mAP 71.7, 31.3, 27.2 against SNR's 67.7, 28.3, 26.0",
    DFH,
    SNR,
    ROUTES,
  ),
  _ablation(
    'dfh_clients',
    HALLUCINATED,
    'components=("fedpav",)',
    'Features with statistics of the clients improve FedPav.',
    'mAP 28.4, 24.1 against 25.4, 22.5',
    2,
  ),
  _ablation(
    'dfh_novel',
    DFH,
    'dfh.novel=none',
    'Statistics of novel domains improve those of the clients alone.',
    'mAP 31.3, 27.2 against 28.4, 24.1',
    2,
  ),
  _ablation(
    'dfh_dirichlet_mixup',
    DFH,
    'dfh.novel=dirichlet_mixup',
    'Mixed statistics are better than mixed features (Dirichlet).',
    'mAP 31.3, 27.2 against 29.1, 25.6',
    2,
  ),
  _ablation(
    'dfh_feature_mixup',
    DFH,
    'dfh.novel=feature_mixup',
    'Mixed statistics are better than mixed features of two.',
    'mAP 31.3, 27.2 against 27.8, 23.6',
    2,
  ),
  _ablation(
    'dfh_mixups',
    Arm('dfh:trial,dfh.novel=dirichlet_mixup'),
    'dfh.novel=feature_mixup',
    'Mixing the features of all domains is better than those of two.',
    'mAP 29.1, 25.6 against 27.8, 23.6',
    2,
  ),
  Claim(
    'dfh_two_sources',
    f'{SOURCE} 3',
    'Hallucinated features improve FedPav with two sources.',
    'mAP 29.8, 29.9, 23.5, 25.0 against 24.6, 24.3, 18.9, 22.8',
    DFH,
    BASE,
    TWO_SOURCES,
    seeds=SIDE_SEEDS,
  ),
  *(
    _alpha(alpha, published, (one,))
    for (alpha, published), one in zip(ALPHAS.items(), ROUTES, strict=True)
  ),
  Claim(
    'dfh_weight',
    'DFH, figure 3',
    'A weight of 5 of the hallucinated losses is better than one of 2.',
    'a figure',
    DFH,
    Arm('dfh:trial,dfh.lam=2.0'),
    ROUTES[:1],
    seeds=SIDE_SEEDS,
  ),
  _ablation(
    'dfh_loss',
    DFH,
    'dfh.loss=identity',
    'The triplet of hallucinated features is better than their classification.',
    'mAP 31.3, 27.2 against 26.3, 20.4',
    5,
  ),
)
