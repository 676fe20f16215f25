"""Which methods gather uploads, and the limit of their memory."""

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.core import trees
from fedreid_jax.round import ahead, compose, placement
from fedreid_jax.round.server import gathering
from fedreid_jax.training.reports import topology

MODEL = 94 * 2**20


def of_round(names, number, exact=True, budget=512.0):
  made = compose.load(names, {}, algorithms)
  return gathering.of_round(made, number, MODEL, budget, exact)


def test_sums_need_no_memory_for_uploads():
  assert not of_round(('fedpav', 'cdw'), 6000).gathered
  line = of_round(('fedpav',), 64).describe()
  assert line == 'uploads: 64 of 94 MB are added to fixed-point sums'
  assert 'float32' in of_round(('fedpav',), 64, exact=False).describe()


@pytest.mark.parametrize('name', ['kd', 'client_clustering', 'fedatt'])
def test_a_method_that_needs_uploads_is_refused_over_budget(name):
  names = ('fedpav', name)
  assert repr(name) in of_round(names, 5).gathered
  assert '470 MB' in of_round(names, 5).describe()
  with pytest.raises(errors.ResourceError) as caught:
    of_round(names, 64)
  line = caught.value.line()
  assert repr(name) in line and '64 uploads of 94 MB are 6016 MB' in line
  assert 'execution.stack_budget_mb' in line and '6016 or more' in line
  assert of_round(names, 64, budget=6016.0).gathered


@pytest.mark.parametrize(
  'names, wanted',
  [
    (('fedpav', 'robust'), True),
    (('fedpav',), False),
    (('fedpav', 'fedatt'), False),
    (('fedpav', 'robust', 'compress'), True),
    # It may read models whole.
    (('fedpav', 'robust', 'fedopt'), False),
  ],
  ids=str,
)
def test_which_uploads_are_combined_in_parts(names, wanted):
  made = compose.load(names, {}, algorithms)
  assert gathering.is_by_coordinate(made) == wanted


@pytest.mark.slow
@pytest.mark.parametrize('beside', [(), ('fedopt',)])
def test_a_median_is_combined_in_parts(clients, config, beside):
  config = toy.replaced(config, {'model.features': (4,)})
  made = compose.load(('fedpav', 'robust', *beside), {}, algorithms)
  wanted = not beside
  executor, variables, _ = toy.make_rounds(config, clients, made, 4)
  server, states = executor.init(variables)
  programs, _ = ahead.compiled(executor, server, states)
  found = topology.collectives(programs.compiled['aggregation'].as_text())
  assert ('all-to-all' in found) == wanted
  # Leaves with fewer values than devices are gathered.
  if wanted:
    kept = trees.split(variables, compose.shared_leaves(made))[0]
    model = sum(x.size * x.dtype.itemsize for x in kept.values())
    assert found['all-gather'][1] < 1.5 * model < len(clients) * model


def test_devices_share_the_memory_of_parts():
  made = compose.load(('fedpav', 'robust'), {}, algorithms)

  def of_parts(leaves, devices):
    shapes = {
      str(k): jax.ShapeDtypeStruct(shape, np.float32)
      for k, shape in enumerate(leaves)
    }
    size = placement.part_bytes(shapes, devices)
    return gathering.of_round(made, 64, MODEL, 512.0, True, size)

  side = 2**11
  square = (side, side)  # 16 MB
  with pytest.raises(errors.ResourceError, match='1024 MB on a device'):
    of_parts([square], 1)
  assert of_parts([square], 2).gathered
  # A last part is smaller, and short arrays are not divided.
  assert placement.divided_axis((3, 3, 5, 4), 5) == 2
  assert placement.divided_axis((3, 3, 5, 4), 6) is None
  with pytest.raises(errors.ResourceError, match='MB on a device'):
    of_parts([square] + [(side - 1,) * 2], 2 * side)
  some = {'a': jax.ShapeDtypeStruct((5, 2), np.float32)}
  assert placement.part_bytes(some, 2) == 3 * 2 * 4
