"""Shapes and types of annotated arrays are checked in tests, and only there."""

import inspect
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import jaxtyping
import pytest

import fedreid_jax
from fedreid_jax.losses import metric

ROOT = Path(fedreid_jax.__file__).parent
# Types of fields only, which are not checked.
WITHOUT_FUNCTIONS = {
  'fedreid_jax.core.types',
  'fedreid_jax.training.callbacks',
  'fedreid_jax.training.trackers',
}


@pytest.mark.parametrize(
  ('features', 'labels', 'wrong'),
  [
    (jnp.zeros((4, 8)), jnp.zeros(3, int), 'labels'),
    (jnp.zeros((4, 8)), jnp.zeros(4), 'labels'),
    (jnp.zeros((4, 2, 8)), jnp.zeros(4, int), 'features'),
    (jnp.zeros((4, 8), int), jnp.zeros(4, int), 'features'),
  ],
)
def test_a_wrong_shape_or_type_is_an_error(features, labels, wrong):
  with pytest.raises(jaxtyping.TypeCheckError, match=f"parameter '{wrong}'"):
    metric.hard_triplet(features, labels, jnp.ones(4, bool), 0.3)


def test_every_module_with_shapes_is_checked(pytestconfig):
  *checked, _ = pytestconfig.getoption('--jaxtyping-packages').split(',')
  modules = {
    '.'.join(path.relative_to(ROOT.parent).with_suffix('').parts)
    for path in ROOT.rglob('*.py')
    if 'from jaxtyping import' in path.read_text()
  }
  assert len(modules) > 50
  for name in modules - WITHOUT_FUNCTIONS:
    assert any(f'{name}.'.startswith(f'{p}.') for p in checked), name


def test_the_annotations_of_a_checked_module_are_not_hidden():
  assert metric.hard_triplet.__wrapped__
  signature = inspect.signature(metric.hard_triplet)
  assert signature.parameters['labels'].annotation.dim_str == 'B'


def test_production_checks_nothing():
  script = """
import sys
import jax.numpy as jnp
import fedreid_jax
from fedreid_jax.losses import metric
assert 'beartype' not in sys.modules
hooks = {getattr(type(finder), '__module__', '') for finder in sys.meta_path}
assert not any(name.startswith('jaxtyping') for name in hooks), hooks
assert not hasattr(metric.hard_triplet, '__wrapped__')
# An integer where floats belong: nothing looks at it.
one = jnp.ones((2, 1), int)
metric.hard_triplet(one, one[:, 0], one[:, 0] > 0, 0.3)
"""
  done = subprocess.run(
    [sys.executable, '-c', script], capture_output=True, text=True, timeout=120
  )
  assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
