"""The table of protocols, and refusals."""

import pytest

from fedreid_jax import errors
from fedreid_jax.data import protocols


def test_every_named_protocol_is_valid_and_plain_data():
  assert set(protocols.PROTOCOLS) == {
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
  }
  for name, protocol in protocols.PROTOCOLS.items():
    assert protocols.get(name) is protocol
    assert protocols.get(protocol) is protocol
    assert hash(protocol) is not None


@pytest.mark.parametrize(
  ('protocol', 'message'),
  [
    ('marked', 'choose one of market, fedreid_legacy'),
    (protocols.Protocol(precision='area'), 'standard, trapezoid'),
    (protocols.Protocol(cmc='dedup'), 'image, identity, single_shot'),
    (protocols.Protocol(repeats=0), 'repeats'),
  ],
)
def test_unknown_rules_are_refused_with_the_choices(protocol, message):
  with pytest.raises(errors.ConfigError, match=message):
    protocols.get(protocol)
