"""Compile a round for a pod: `fedreid compile RECIPE --topology=v5e:4x8`.

  fedreid compile fedpav:paper --topology=v5e:4x4
  fedreid compile dfh:paper,model.dtype=float32 --topology=v6e:2x2
  fedreid compile dfh:paper --topology=h100:2x8    # two hosts of eight GPUs
  JAX_NUM_CPU_DEVICES=8 fedreid compile fedpav --topology=cpu:8

Nothing is run, no accelerator is needed, and no image of a data set with
published sizes is read. The table has, for a chip and every program of a round:
its memory, with the temporary arrays in it; operations; bytes between the chip
and its memory in one step (`MB a step`) and in all other parts (`others`); the
compiler's estimate of its time; the time that a chip of this kind needs at
least by its published peaks (`floor`, bfloat16). Lines below have the
collectives with their bytes. For cpu:N all bytes are in `others`. The compiler
counts the body of a loop once, so that operations and floor of the row
`training` are those of one step of one client.

The compiler for GPUs (a100, h100, h200) states memory and collectives only, and
knows no workspace of cuDNN. A round that does not fit in the memory of a chip
ends with exit code 6. The command needs fedreid_jax[tpu] or a CUDA extra for
topologies other than cpu:N.
"""

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

TAKES_RECIPE = True

COLUMNS = (
  *('program', 'MB', 'temporary', 'Gflop', 'MB a step', 'others'),
  *('ms', 'floor'),
)
_TOPOLOGY = flags.DEFINE_string(
  'topology',
  None,
  'Pod, for example v5e:2x4, v4:2x2x1, v6e:4x4, h100:8, h100:2x8 or cpu:8.',
)


def main(argv: list[str]) -> None:
  """Prints a table of the compiled programs of a round."""

  def body():
    if not _TOPOLOGY.value:
      raise errors.ConfigError('no topology', '--topology', 'give v5e:2x4')
    from rich import console

    from fedreid_jax.training.reports import console_table, topology

    rows, cost, device = topology.programs(run.config(), _TOPOLOGY.value)
    chip = topology.CHIPS.get(device.device_kind)
    notes = [
      f'{device.device_kind}, {_TOPOLOGY.value}; a round trains '
      f'{errors.counted(cost.steps, "step")} of '
      f'{errors.counted(cost.images, "image")} over all clients',
      *(
        f'sent {way}: {sum(sizes.values()) / 1e6:.1f} MB'
        for way, sizes in cost.sent.items()
      ),
    ]
    console_table.show(
      console.Console(highlight=False),
      'programs of a round, of one chip',
      COLUMNS,
      [_cells(row, chip) for row in rows],
      (),
      notes + [_collectives(row) for row in rows if row.collectives],
    )
    _check(rows, chip)

  run.guarded(argv, body)


def _cells(row, chip) -> list[str]:
  floor = ''
  if chip and row.flops:
    floor = f'{1e3 * row.floor(chip):.3f}'
  return [
    row.name,
    f'{row.need / 1e6:.1f}',
    f'{row.memory.temporary / 1e6:.1f}',
    # The compiler for GPUs has none of the following. Some programs for TPUs
    # have no estimate of the time, which is then negative or zero.
    f'{row.flops / 1e9:.2f}' if row.flops else '',
    f'{row.moved / 1e6:.1f}' if row.moved else '',
    f'{row.others / 1e6:.1f}' if row.others else '',
    f'{1e3 * row.seconds:.3f}' if row.seconds > 0 else '',
    floor,
  ]


def _collectives(row) -> str:
  found = ', '.join(
    f'{number} {kind} {size / 1e6:.1f} MB'
    for kind, (number, size) in row.collectives.items()
  )
  return f'collectives of {row.name}: {found}'


def _check(rows, chip) -> None:
  if not chip:
    return
  largest = max(rows, key=lambda row: row.need)
  if largest.need > chip.memory:
    raise errors.ResourceError(
      f'{largest.name} needs {largest.need / 1e9:.1f} GB of a chip with '
      f'{chip.memory / 1e9:.1f}',
      '--topology',
      'lower local.batch, execution.width or execution.image_budget_mb',
    )
