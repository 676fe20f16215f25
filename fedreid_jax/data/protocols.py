"""The published test protocols of re-identification as plain data.

A protocol defines the gallery images hidden from a query, the average precision
and the CMC curve of the ranked list, and the queries over which the means are
computed.
"""

from typing import Literal, NamedTuple, get_args

from fedreid_jax import errors

Precision = Literal['standard', 'trapezoid']
PRECISIONS = get_args(Precision)
ACCURACY = 'accuracy'  # of a target of classification, which ranks nothing
CMC_RULES = ('image', 'identity', 'single_shot')


class Protocol(NamedTuple):
  """One test protocol.

  Attributes:
    same_camera: drop the gallery images of the query's identity that were taken
      by the query's camera.
    common_places: pairs (query camera, gallery camera); all images of the
      gallery camera are hidden from queries of the query camera.
    precision: average precision, 'standard' (mean of the precision at every
      hit) or 'trapezoid' (mean of the precision before and at every hit).
    cmc: entries of the CMC curve: 'image', 'identity' (every identity once,
      at its nearest image) or 'single_shot' (one gallery image per identity,
      drawn anew `repeats` times for every query).
  """

  same_camera: bool = True
  common_places: tuple[tuple[int, int], ...] = ()
  precision: str = 'standard'
  cmc: str = 'image'
  repeats: int = 1
  count_invalid: bool = False  # queries without a match count as zero
  junk_identity: int = -1  # always hidden


ProtocolName = Literal[
  'market',
  'fedreid_legacy',
  'cuhk03_classic',
  'single_shot',
  'sysu',
  'regdb',
  'llcm',
  'cuhk_sysu',
  'vcm',
  'buptcampus',
]
PROTOCOLS: dict[str, Protocol] = {
  # Market-1501, DukeMTMC-reID, MSMT17, CUHK03-NP and most other data sets.
  'market': Protocol(),
  # The evaluation of the federated re-identification benchmark: trapezoid
  # precision, queries without an answer count as misses.
  'fedreid_legacy': Protocol(precision='trapezoid', count_invalid=True),
  # CUHK03 with 100 test identities and 20 splits (Li et al., CVPR 2014).
  'cuhk03_classic': Protocol(cmc='single_shot', repeats=10),
  # VIPeR, GRID, i-LIDS, PRID, 3DPeS, CAVIAR, CUHK01: one query and one gallery
  # image per identity. The two are never the same image, and data sets without
  # camera labels would lose every match by the camera rule.
  'single_shot': Protocol(same_camera=False),
  # SYSU-MM01 (Wu et al., ICCV 2017): cameras 2 and 3 watch the same place.
  'sysu': Protocol(
    same_camera=False, common_places=((3, 2), (2, 3)), cmc='identity'
  ),
  # RegDB has one camera per modality, so no camera rule applies.
  'regdb': Protocol(same_camera=False),
  # LLCM: camera numbers are those of places, common to the two modalities.
  'llcm': Protocol(cmc='identity'),
  # CUHK-SYSU has no camera labels, so no camera rule applies.
  'cuhk_sysu': Protocol(same_camera=False),
  # HITSZ-VCM (Lin et al., CVPR 2022): a place has one number in both
  # modalities, and tracklets of the query's person there are hidden.
  'vcm': Protocol(),
  # BUPTCampus (Du et al., IEEE TIFS 2023): no camera rule.
  'buptcampus': Protocol(same_camera=False),
}


def get(protocol: str | Protocol) -> Protocol:
  """Finds or checks a protocol; raises ConfigError for an unknown one."""
  if isinstance(protocol, str):
    if protocol not in PROTOCOLS:
      raise errors.ConfigError(
        f'unknown test protocol {protocol!r}',
        'protocol',
        f'choose one of {", ".join(PROTOCOLS)}',
      )
    return PROTOCOLS[protocol]
  if protocol.precision not in PRECISIONS:
    raise errors.ConfigError(
      f'unknown average precision {protocol.precision!r}',
      'protocol.precision',
      f'choose one of {", ".join(PRECISIONS)}',
    )
  if protocol.cmc not in CMC_RULES:
    raise errors.ConfigError(
      f'unknown CMC rule {protocol.cmc!r}',
      'protocol.cmc',
      f'choose one of {", ".join(CMC_RULES)}',
    )
  if protocol.repeats < 1:
    raise errors.ConfigError(
      f'{protocol.repeats} repeats', 'protocol.repeats', 'use 1 or more'
    )
  return protocol
