"""Programs of a round that are compiled and not run."""

import commands
import jax
import pytest

from fedreid_jax import errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.training.reports import topology

TEXT = """
  %a = f32[10,20]{1,0} all-reduce(f32[10,20]{1,0} %x), replica_groups={}
  %b = (bf16[4]{0}, s32[]) all-gather-start(bf16[1]{0} %y), dimensions={0}
  %c = f32[10]{0} fusion(f32[10]{0} %all-reduce.1), kind=kLoop
  %d = pred[8]{0} all-reduce(pred[8]{0} %z), replica_groups={}
"""


def test_collectives_are_counted_with_their_bytes():
  assert topology.collectives(TEXT) == {
    'all-reduce': (2, 800 + 8),
    'all-gather': (1, 8 + 4),
  }


def test_data_sets_are_described_by_their_published_sizes():
  config = validation.validate(recipes.recipe('dfh:paper', ''))
  found = topology.described(config)
  sizes = {c.name: (c.num_images, c.num_identities) for c in found.clients}
  assert sizes['msmt17'] == (32621, 1041)
  assert all(len({*c.labels}) == c.num_identities for c in found.clients)
  assert found.image_shape == (256, 128, 3)


def test_unknown_topologies():
  with pytest.raises(errors.ConfigError, match='CPU devices'):
    topology.devices('cpu:4096')
  with pytest.raises(errors.ConfigError, match='no topology'):
    topology.devices('x:2x2')


@pytest.mark.slow
def test_a_round_is_compiled_for_all_devices():
  config = validation.validate(recipes.recipe('dfh:smoke', ''))
  number = min(2, len(jax.devices('cpu')))
  rows, cost, device = topology.programs(config, f'cpu:{number}')
  assert device.platform == 'cpu' and cost.steps > 0
  by_name = {row.name: row for row in rows}
  assert by_name['training'].flops > 1e6
  assert all(sum(row.memory) > 0 for row in rows)


@pytest.mark.slow
def test_the_command_prints_a_table():
  code, out, err = commands.launch_program(
    'compile', 'fedpav:smoke', '--topology=cpu:1'
  )
  assert code == 0, err
  assert 'training' in out and 'sent up' in out
  code, _, err = commands.launch_program('compile', 'fedpav:smoke')
  assert code == 2 and 'no topology' in err
