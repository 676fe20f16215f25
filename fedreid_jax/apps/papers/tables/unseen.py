"""The benchmark of unseen domains: methods over FedPav, by kind of start.

All methods have FedPav's average, the batches of DFH, the routes of `ROUTES`
and their own rates. From random weights and from weights of rendered persons
the base loss is DFH's: cross-entropy and a triplet loss. From weights of
ImageNet it is cross-entropy alone: on held-out persons the triplet loss costs
FedPav 19 mAP there at its best rate, and 70 at 0.02 (docs/protocol.md).

The weights of rendered persons are of the first version of the world. DFH is
tried there as well, in a world that they have not seen.
"""

from fedreid_jax.apps.papers.tables.declare import ROUTES, Arm, Claim
from fedreid_jax.data.synthetic import versions

# Recipes by method.
METHODS = {
  'DFH': 'dfh',
  'SNR': 'snr',
  'SNR + DFH': 'snr_dfh',
  'MixStyle': 'mixstyle',
  'CrossStyle': 'crossstyle',
  'CCST': 'ccst',
  'FedSR': 'fedsr',
  'DACS': 'dacs',
  'SSCU': 'sscu',
}
# Changes of all recipes by kind of start, which is the name of a preset.
STARTS = {'random': '', 'rendered': '', 'imagenet': ',loss.triplet=0.0'}


def _claim(start: str, method: str) -> Claim:
  return _improves(
    *(f'{start}_{METHODS[method]}', method, start, STARTS[start]),
    f'from {start} weights',
  )


def _improves(
  name: str, method: str, start: str, more: str, where: str, place: str = ''
) -> Claim:
  """The claim that a method improves FedPav; `more` changes both recipes.

  `where` ends its text, and `place` its label in the picture.
  """
  return Claim(
    *(name, 'benchmark of unseen domains'),
    f'{method} improves FedPav {where}.',
    'no figure for this setting',
    Arm(f'{METHODS[method]}:{start}{more}'),
    Arm(f'dfh:{start},components=("fedpav",){more}'),
    ROUTES,
    benchmark=(f'from {start} weights', f'{method}{place}'),
  )


CLAIMS = (
  *(_claim(start, method) for start in STARTS for method in METHODS),
  _improves(
    *('first_world_dfh', 'DFH', 'rendered'),
    f',data.source={versions.FIRST}',
    *('in the first world', ', first world'),
  ),
)
