"""Programs of a round that are compiled and not run."""

import importlib.util
import re

import commands
import jax
import pytest

from fedreid_jax import errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.training.reports import topology

CLIENTS = 3  # of the preset `smoke`
ROWS = 4096  # bytes of the numbers of single clients
TEXT = """
  %a = f32[10,20]{1,0:T(8,128)} all-reduce(f32[10,20]{1,0} %x), channel_id=1
  %b = (bf16[4]{0}, s32[]) all-gather-start(bf16[1]{0} %y), dimensions={0}
  %c = f32[10]{0} fusion(f32[10]{0} %all-reduce.1), kind=kLoop
  %d = pred[8]{0} all-reduce(pred[8]{0} %z), replica_groups={}
"""


# In `S(1)` are arrays on the chip. Only the fusions, the copy, the slice and
# the body of the loop move bytes.
MOVES = """
%fused (p: bf16[8]) -> bf16[8] {
  %p = bf16[8]{0} parameter(0)
  ROOT %q = bf16[8]{0} negate(%p)
}

%body (s: f32[6]) -> f32[6] {
  %s = f32[6]{0} parameter(0)
  ROOT %t = f32[6]{0:T(8)S(1)} multiply(%s, %s), metadata={op_name="NAME"}
}

ENTRY %main (a: bf16[8], b: f32[6]) -> bf16[8] {
  %a = bf16[8]{0:T(8)} parameter(0)
  %b = f32[6]{0} parameter(1)
  %c = (bf16[8]{0:T(8)S(1)}, bf16[8]{0:T(8)}, u32[]) copy-start(%a)
  %d = bf16[8]{0:T(8)S(1)} copy-done(%c)
  %e = ((bf16[8]{0}), bf16[4]{0:T(4)S(1)}, s32[]) slice-start(%a), slice={[0:4]}
  %f = bf16[4]{0:T(8)S(1)} slice-done(%e)
  %w = f32[6]{0} while(%b), condition=%c0, body=%body
  %t = u8[1000]{0} parameter(2)
  %h = u8[10]{0:S(1)} fusion(%t), kind=kCustom, calls=%gathered
  ROOT %g = bf16[8]{0} fusion(%d, %a), kind=kLoop, calls=%fused
}
"""


def test_bytes_between_a_chip_and_its_memory():
  copy, slice_, body, rows, fusion = 2 * 8, 2 * 4, 4 * 6, 10, 2 * (8 + 8)
  step = MOVES.replace('NAME', 'jit(run)/while/body/local_step/mul')
  others = copy + slice_ + rows + fusion
  assert topology.moved(step) == (body, others)
  assert topology.moved(MOVES) == (0, body + others)


@pytest.mark.parametrize(
  ('array', 'size'),
  [
    ('bf16[32,64,32,64]{3,0,2,1:T(8,128)(2,1)}', 2 * 32 * 64 * 32 * 128),
    ('f32[3,5]{0,1:T(8,128)}', 4 * 128 * 8),  # the first axis is the fastest
    ('f32[3,5]{1,0:T(8,128)}', 4 * 8 * 128),
    ('f32[2,130]{1,0:T(2,128)S(2)}', 0),  # not in the large memory
    ('f32[130]{0:T(1,128)}', 4 * 256),
    ('f32[7,3]{1,0}', 4 * 21),  # no tiles
    ('f32[]{:T(128)}', 4),
  ],
)
def test_tiles_that_an_array_fills_in_part_are_moved_whole(array, size):
  text = f'ENTRY %main () -> f32[] {{\n  %a = {array} fusion()\n}}\n'
  assert topology.moved(text) == (0, size)


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


def test_clients_are_divided_as_configured():
  """SYSU-MM01 has 34,167 images of 395 persons by six cameras."""
  config = validation.validate(recipes.recipe('dppt:paper', ''))
  assert config.data.client_split == 'camera_independent'
  clients = topology.described(config).clients
  assert len(clients) == 6 and sum(c.num_images for c in clients) == 34167
  assert {c.num_identities for c in clients} == {395}


def test_clients_of_infrared_sets_have_both_modalities():
  config = validation.validate(recipes.recipe('agw:paper', ''))
  for client in topology.described(config).clients:
    assert 0.4 < client.modalities.mean() < 0.6
  config = validation.validate(recipes.recipe('dfh:paper', ''))
  assert not any(c.modalities.any() for c in topology.described(config).clients)


def test_a_public_set_has_its_published_size():
  config = validation.validate(recipes.recipe('fedpav_kd_cdw:paper', ''))
  public = topology.described(config).public
  assert public is not None and public.images().shape == (7264, 256, 128, 3)
  assert public.images().strides[0] == 0  # no memory


def test_unknown_topologies():
  with pytest.raises(errors.ConfigError, match='CPU devices'):
    topology.devices('cpu:4096')
  with pytest.raises(errors.ConfigError, match='no topology'):
    topology.devices('x:2x2')


@pytest.mark.slow
def test_a_round_is_compiled_for_all_devices():
  config = validation.validate(recipes.recipe('fedpav:smoke', ''))
  number = min(2, len(jax.devices('cpu')))
  rows, cost, device = topology.programs(config, f'cpu:{number}')
  assert device.platform == 'cpu' and cost.steps > 0
  by_name = {row.name: row for row in rows}
  assert by_name['training'].flops > 1e6
  assert all(sum(row.memory) > 0 for row in rows)


WIDE = re.compile(r'\b[fsuc](64|128)\[')
HOST = re.compile(r'infeed|outfeed|host_callback|= .* (send|recv)\(')
POD = pytest.param(
  'v5e:2x4',
  marks=pytest.mark.skipif(
    not importlib.util.find_spec('libtpu'), reason='needs fedreid_jax[tpu]'
  ),
)


def compiled(recipe, topology_):
  config = validation.validate(recipes.recipe(recipe, ''))
  return topology.compiled(config, topology_)


@pytest.mark.slow
@pytest.mark.parametrize('pod', ['cpu:8', POD])
@pytest.mark.parametrize('recipe', ['dfh', 'fedreid'])
def test_facts_of_a_round_on_a_pod(recipe, pod):
  made, cost, _ = compiled(f'{recipe}:smoke', pod)
  texts = {name: one.as_text() for name, one in made.items()}
  for name, text in texts.items():
    assert not HOST.search(text), name
    # XLA on a CPU counts the steps of a loop in 64 bits.
    assert pod.startswith('cpu') or not WIDE.search(text), name
  found = {name: topology.collectives(text) for name, text in texts.items()}
  # Clients train, and their uploads are added, without one.
  assert {n for n, kinds in found.items() if kinds} == {'aggregation'}
  # A sum in fixed point has two integers for each parameter.
  number, size = map(sum, zip(*found['aggregation'].values(), strict=True))
  shared = cost.sent['up']['model'] / CLIENTS
  assert 2 * shared <= size < 2.2 * shared + ROWS
  # The compiler for TPUs joins the sums. Two more are of the few numbers that
  # the server has of each client.
  assert pod.startswith('cpu') or number <= 3


@pytest.mark.slow
def test_the_memory_of_a_device_does_not_grow_with_the_clients():
  def need(clients):
    made, _, _ = compiled(
      'fedpav:smoke,data.sources=("plaza",),data.client_split=iid,'
      'data.identities=64,execution.image_budget_mb=0.05,'
      f'data.num_clients={clients}',
      'cpu:8',
    )
    return {
      name: sum(topology.costs.of_memory(one)) for name, one in made.items()
    }

  few, many = need(32), need(128)
  for name in ('start', 'training', 'uploads'):
    assert many[name] <= 1.1 * few[name], name


@pytest.mark.slow
@pytest.mark.skipif(
  not importlib.util.find_spec('jax_cuda12_plugin'), reason='needs CUDA'
)
def test_a_round_is_compiled_for_gpus():
  made, _, device = compiled('fedpav:smoke', 'h100:2x8')
  assert device.device_kind in topology.CHIPS
  assert topology.collectives(made['aggregation'].as_text())


@pytest.mark.slow
def test_the_command_prints_a_table():
  code, out, err = commands.launch_program(
    'compile', 'fedpav:smoke', '--topology=cpu:1'
  )
  assert code == 0, err
  assert 'training' in out and 'sent up' in out
  code, _, err = commands.launch_program('compile', 'fedpav:smoke')
  assert code == 2 and 'no topology' in err
