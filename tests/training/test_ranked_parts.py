"""Tests of a global model of which clients keep a part."""

import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.training import build, loop

LEAVES = dict.fromkeys(
  [
    'params/backbone/conv/kernel',
    'batch_stats/backbone/bn/mean',
    'params/neck/fc/kernel',
    'batch_stats/neck/bn/mean',
    'params/classifier/kernel',
  ]
)
EVERYTHING = r'(?!params/classifier/)'
NO_NECK = r'(?!\w+/neck/|params/classifier/)'
NO_MOMENTS = r'(?!batch_stats/|params/classifier/)'
NO_BACKBONE = r'(?!params/backbone|params/classifier/)'


@pytest.mark.parametrize(
  'shared, feature, both, moments, field',
  [
    (EVERYTHING, 'embedding', True, 'running', ''),
    ('(?!)', 'embedding', True, 'running', ''),  # every client has its model
    (NO_NECK, 'embedding', False, 'running', 'evaluation.feature'),
    (NO_NECK, 'embedding', False, 'source', 'evaluation.feature'),
    (NO_NECK, 'feature', True, 'running', 'evaluation.feature'),
    (NO_NECK, 'feature', False, 'running', ''),
    (NO_MOMENTS, 'embedding', False, 'running', 'components'),
    (NO_MOMENTS, 'feature', False, 'running', 'components'),
    (NO_MOMENTS, 'embedding', False, 'source', ''),
    (NO_MOMENTS, 'embedding', False, 'target', ''),
    (NO_MOMENTS, 'embedding', False, 'stream', 'components'),
    (NO_BACKBONE, 'feature', False, 'source', 'components'),
  ],
)
def test_features_must_not_need_what_clients_keep(
  shared, feature, both, moments, field
):
  config = toy.replaced(
    toy.toy_config(),
    {
      'evaluation.feature': feature,
      'evaluation.report_both_neck_features': both,
      'evaluation.batch_stats': moments,
    },
  )
  if not field:
    build.check_ranked(config, LEAVES, shared)
    return
  with pytest.raises(errors.ConfigError, match='is personal') as found:
    build.check_ranked(config, LEAVES, shared)
  assert f' — {field} — share it' in str(found.value)


def test_infrared_layers_may_have_no_moments_of_a_gallery():
  config = toy.replaced(
    toy.toy_config(),
    {'evaluation.batch_stats': 'target', 'model.modality_specific_stages': 1},
  )
  with pytest.raises(errors.ConfigError, match='is personal'):
    build.check_ranked(config, LEAVES, NO_MOMENTS)


def test_a_run_is_refused_before_it_compiles(tmp_path):
  config = recipes.recipe('fedreid', 'smoke,evaluation.feature=embedding')
  with pytest.raises(errors.ConfigError, match="neck/.*to 'feature'"):
    loop.train(config, tmp_path)


def test_flipped_labels_need_a_classifier_that_clients_share():
  build.check_flip('flip', LEAVES)
  build.check_flip('shuffle', {})
  known = {n: x for n, x in LEAVES.items() if 'classifier' not in n}
  with pytest.raises(errors.ConfigError, match='only rename persons'):
    build.check_flip('flip', known)


@pytest.mark.parametrize(
  'fields, refused',
  [
    ({'data.client_split': 'iid', 'data.labels': ''}, False),
    ({'data.client_split': 'iid', 'data.labels': 'global'}, False),
    ({'data.client_split': 'by_camera', 'data.labels': 'global'}, False),
    ({'data.client_split': 'by_camera', 'data.labels': 'concat'}, True),
    ({'data.client_split': 'iid', 'data.labels': 'concat'}, True),
    ({'data.client_split': 'by_dataset', 'data.labels': 'concat'}, True),
    ({'data.client_split': 'by_dataset', 'data.labels': 'global'}, True),
  ],
)
def test_flipped_labels_need_persons_whom_clients_share(fields, refused):
  config = recipes.recipe('configs/fedavg.py', 'smoke')
  fields = fields | {
    'data.sources': ('plaza',),
    'data.poison': 'flip',
    'data.poisoned': ('plaza.part0',),
  }
  config.update_from_flattened_dict(fields)
  if refused:
    with pytest.raises(errors.ConfigError, match='only rename persons'):
      validation.validate(config)
  else:
    validation.validate(config)
