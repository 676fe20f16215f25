"""Prepare, check and draw data sets: `fedreid data COMMAND --flags`.

  prepare --dataset=NAME --root=DIR --out=DIR    write ArrayRecord and pixels
  doctor  --dataset=NAME --root=DIR [--deep]     check a folder
  doctor  --root=DIR [--deep]                    check photographs of your own
  synth   --dataset=NAME --root=DIR              write a miniature
  sheet   --out=FILE.png                         draw the synthetic images
  list                                           list all data sets

NAME can have options: `msmt17:val=drop`, `regdb:trial=3`.
"""

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run
from fedreid_jax.config import schema
from fedreid_jax.data.synthetic import versions

if TYPE_CHECKING:
  from fedreid_jax.data.benchmark.doctor import Report

# Flags take defaults and ranges from the fields that they must agree with.
FIELDS = schema.fields()


def _range(field: str) -> tuple[int, int]:
  within = FIELDS[field].range
  assert within is not None
  return int(within.low), int(within.high)


_DATASET = flags.DEFINE_string(
  'dataset', None, 'NAME[:option=value,...]; `list` prints all names.'
)
_ROOT = flags.DEFINE_string('root', None, 'Folder of the unpacked archive.')
_OUT = flags.DEFINE_string('out', None, 'Folder or file to write.')
_HEIGHT = flags.DEFINE_integer(
  'height', None, 'Height of images in pixels.', *_range('data.height')
)
_WIDTH = flags.DEFINE_integer(
  'width', None, 'Width of images in pixels.', *_range('data.width')
)
_RESAMPLE = flags.DEFINE_enum(
  'resample',
  str(FIELDS['data.resample'].default),
  list(FIELDS['data.resample'].choices()),
  'prepare: must equal data.resample of the runs, or images are decoded again.',
)
_MAX_PIXELS = flags.DEFINE_integer(
  'max_pixels',
  int(FIELDS['data.max_pixels'].default),
  'prepare, doctor: maximum number of pixels of a file.',
  *_range('data.max_pixels'),
)
_FAST_DECODE = flags.DEFINE_bool(
  'fast_decode',
  bool(FIELDS['data.fast_decode'].default),
  'prepare: decode JPEG files at a fraction of their size.',
)
_ON_BAD_IMAGE = flags.DEFINE_enum(
  'on_bad_image',
  str(FIELDS['data.on_bad_image'].default),
  list(FIELDS['data.on_bad_image'].choices()),
  'prepare: treatment of unreadable images.',
)
_DEEP = flags.DEFINE_bool('deep', False, 'doctor: decode every image.')
_VERIFY = flags.DEFINE_bool(
  'verify', False, 'prepare: compare SHA-256 with the data prepared before.'
)
_IDENTITIES = flags.DEFINE_integer(
  'identities', 16, 'synth: number of persons.', 6, 2000
)
_SOURCE = flags.DEFINE_enum(
  'source',
  versions.UNVERSIONED,
  versions.NAMES,
  'sheet: version of the synthetic world.',
)
_SEED = flags.DEFINE_integer('seed', 0, 'synth, sheet: random seed.', 0)


def _required(flag: flags.FlagHolder[str | None]) -> str:
  if not flag.value:
    raise errors.ConfigError(
      f'no --{flag.name}', 'command line', f'give --{flag.name}='
    )
  return flag.value


def prepare() -> None:
  """Writes a data set as ArrayRecord files and as decoded pixels."""
  from rich import console, progress

  from fedreid_jax.data.benchmark import builder, prepared
  from fedreid_jax.data.datasets import registry
  from fedreid_jax.data.decoder import Decoder

  spec, root, out = _required(_DATASET), _required(_ROOT), _required(_OUT)
  decoder = Decoder(
    _HEIGHT.value or 256,
    _WIDTH.value or 128,
    on_bad_image=_ON_BAD_IMAGE.value,
    resample=_RESAMPLE.value,
    max_pixels=_MAX_PIXELS.value,
    fast=_FAST_DECODE.value,
  )
  dataset, options = registry.parse(spec)
  source = registry.locate(dataset, root, '--root')
  total = len(registry.read(dataset, source, **options))
  # Imported first, because an import blocks the thread that draws the bar.
  builder.modules()
  screen = console.Console(stderr=True)
  with progress.Progress(console=screen, transient=True) as bar:
    write = bar.add_task('writing', total=total)
    decode = bar.add_task('decoding', total=total)
    done = prepared.prepare(
      source,
      spec,
      out,
      decoder,
      _VERIFY.value,
      lambda more: bar.advance(write, more),
      lambda more: bar.advance(decode, more),
    )
  shape = 'x'.join(str(size) for size in done.images.shape)
  print(f'{dataset.title}: {shape} uint8 in {out}, digest {done.digest[:16]}')


def doctor() -> None:
  """Prints the counts of a folder and its problems.

  With a data set, the published counts stand beside them; without one, the
  folder has photographs of one's own.
  """
  if _DATASET.value:
    _examine_published(_DATASET.value, _required(_ROOT))
  else:
    _examine_photographs(_required(_ROOT))


def _examine_published(spec: str, root: str) -> None:
  from fedreid_jax.data.benchmark import doctor as doctors
  from fedreid_jax.data.datasets import registry

  dataset, options = registry.parse(spec)
  folder = registry.locate(dataset, root, '--root')
  report = doctors.examine(
    dataset, folder, options, _DEEP.value, _MAX_PIXELS.value
  )
  chosen = ', '.join(f'{key}={value}' for key, value in options.items())
  rows: list[list[str]] = []
  for row in report.rows:
    # Images, identities and cameras; None where no number was published.
    published = row.expected or (None,) * 3
    pairs = zip(row.found, published, strict=True)
    cells = [
      f'{is_:,} / ' + ('?' if should is None else f'{should:,}')
      for is_, should in pairs
    ]
    rows.append([row.split, *cells])
  title = f'{dataset.title}: found / published'
  _show(title, 'split', rows, [chosen] if chosen else [], report)
  doctors.check(report, folder)
  print(f'{errors.counted(len(report.findings), "warning")}, no errors')


def _examine_photographs(root: str) -> None:
  from fedreid_jax.data import files
  from fedreid_jax.data.benchmark import doctor as doctors
  from fedreid_jax.data.folder import doctor as of_photographs

  folder = files.check_root(root, '--root')
  found = of_photographs.examine(folder, _DEEP.value, _MAX_PIXELS.value)
  rows = [
    [row.split, *('-' if n is None else f'{n:,}' for n in row.found)]
    for row in found.report.rows
  ]
  _show(f'{folder} ({found.layout})', 'domain', rows, [], found.report)
  for note in found.notes:
    print(f'note: {note}')
  doctors.check(found.report, folder)
  warnings = errors.counted(len(found.report.findings), 'warning')
  print(f'{warnings}, no errors')
  given = shlex.quote(f'--config.data.root={folder}')
  print(f'next: fedreid train fedpav:photos {given} --workdir=WORKDIR')


def _show(
  title: str,
  first: str,
  rows: list[list[str]],
  caption: list[str],
  report: 'Report',
) -> None:
  """Prints the table and the findings of a doctor."""
  from rich import console

  from fedreid_jax.training.reports import console_table

  screen = console.Console(highlight=False)
  columns = [first, 'images', 'identities', 'cameras']
  console_table.show(screen, title, columns, rows, caption=caption)
  for finding in report.findings:
    kind = 'error' if finding.is_error else 'warning'
    line = errors.printable(f'{kind}: {finding.what}')
    # A file name may contain brackets, which rich would read as markup.
    screen.print(line, markup=False, highlight=False)
  if report.skipped:
    print(f'files that are no image of the data set: {report.skipped}')


def synth() -> None:
  """Writes a miniature of a data set, in its official layout."""
  from fedreid_jax.data import miniatures
  from fedreid_jax.data.datasets import registry

  root = _required(_ROOT)
  dataset, _ = registry.parse(_required(_DATASET))
  # Rendering takes half a minute, so the folder is checked first.
  miniatures.check_empty(root)
  pictures = miniatures.render(
    _IDENTITIES.value,
    height=_HEIGHT.value or 128,
    width=_WIDTH.value or 64,
    seed=_SEED.value,
  )
  miniatures.write(dataset.name, root, pictures)
  print(f'a miniature of {dataset.title} in {root}')
  given = shlex.quote(f'--root={root}')
  print(f'next: fedreid data doctor --dataset={dataset.name} {given}')


def sheet() -> None:
  """Writes a contact sheet of synthetic images."""
  from fedreid_jax.data.synthetic import photographs

  given = {'height': _HEIGHT.value, 'width': _WIDTH.value}
  size: dict[str, Any] = {name: n for name, n in given.items() if n}
  photographs.write_contact_sheet(
    _required(_OUT), seed=_SEED.value, source=_SOURCE.value, **size
  )
  print(f'the synthetic world in {_OUT.value}')


def list_all() -> None:
  """Prints the names, protocols, options and notes of all data sets."""
  from fedreid_jax.cli import list as listing

  print('\n'.join(listing.data_set_entries()))


COMMANDS: dict[str, Callable[[], None]] = {
  'prepare': prepare,
  'doctor': doctor,
  'synth': synth,
  'sheet': sheet,
  'list': list_all,
}


def main(argv: list[str]) -> None:
  """Runs the command in the first argument."""

  def body():
    if len(argv) < 2 or argv[1] not in COMMANDS:
      raise errors.ConfigError(
        f'unknown command {argv[1]!r}' if len(argv) > 1 else 'no command',
        'command line',
        f'one of {", ".join(COMMANDS)}',
      )
    COMMANDS[argv[1]]()

  # The other commands need no JAX, whose import takes seconds.
  renders = len(argv) > 1 and argv[1] in ('synth', 'sheet')
  run.guarded(argv[:1] + argv[2:], body, with_jax=renders)
