"""What makes silent bugs loud, and the small world every test shares."""

import gc
import importlib.metadata
import os

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['JAX_NUM_CPU_DEVICES'] = '8'
# Tests compile far longer than they compute: this saves half of the time.
# Programs that should have equal bits do not have them then; those tests are
# marked `exact`, and `XLA_FLAGS= python -m pytest -m exact` compiles as a run.
# XLA ends the process at a flag that it does not know, and 0.11 has no other
# way of fusion.
os.environ.setdefault(
  'XLA_FLAGS',
  '--xla_backend_optimization_level=0'
  ' --xla_llvm_disable_expensive_passes=true'
  ' --xla_cpu_parallel_codegen_split_count=1'
  + (
    ' --xla_cpu_use_fusion_emitters=false'
    if importlib.metadata.version('jaxlib').startswith('0.10.')
    else ''
  ),
)

from pathlib import Path

import jax
import jaxtyping
import pytest
import toy

from fedreid_jax.core import types
from fedreid_jax.data import cache
from fedreid_jax.data.synthetic import synthetic_source
from fedreid_jax.models import resnet

if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  jax.config.update(
    'jax_compilation_cache_dir', str(cache.cache_dir() / 'xla-tests')
  )
jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.2)
# The collection of cycles took a tenth of the time of the tests, and few of the
# objects of a trace are in cycles.
gc.set_threshold(200_000, 50, 1000)
RENDERED = synthetic_source.folder()

# Where rounds with every hook are built. Checking programs more than doubles
# the time of a trace: other tests go without.
CHECKED = ('test_contract.py', 'test_simulation.py')


pytest_plugins = ['miniatures']


@pytest.fixture(autouse=True)
def _checks_of_programs(request):
  slow = request.node.get_closest_marker('slow')
  with jax.enable_checks(request.path.name in CHECKED and not slow):
    yield


@pytest.fixture(autouse=True)
def _own_cache_of_files(tmp_path, monkeypatch):
  monkeypatch.setattr(cache, 'cache_dir', lambda: Path(tmp_path, 'cache'))
  # The renderer takes seconds to compile; its images do not depend on a test.
  monkeypatch.setattr(synthetic_source, 'folder', lambda: RENDERED)


@pytest.fixture
def unchecked(monkeypatch):
  """Turns the checks of annotations off, as they are outside of tests.

  Tests of the package's own errors about wrong arguments need it.
  """
  monkeypatch.setattr(jaxtyping.config, 'jaxtyping_disable', True)


@pytest.fixture
def shallow(monkeypatch):
  """Gives ResNet-18 a block a stage, which compiles in half of the time."""
  monkeypatch.setitem(resnet.DEPTHS, 'resnet18', (False, (1, 1, 1, 1)))


@pytest.fixture
def config():
  """A fresh toy configuration, free to change."""
  return toy.toy_config()


@pytest.fixture(scope='session')
def clients() -> tuple[types.ClientData, ...]:
  """Four clients of different sizes, one smaller than two batches."""
  return toy.toy_clients()


@pytest.fixture(scope='module')
def run():
  """A trained run of the toy clients."""
  import toy_run

  return toy_run.toy_run()
