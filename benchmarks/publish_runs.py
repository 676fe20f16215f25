r"""Packs the results of runs for the repository.

  python -m benchmarks.publish_runs runs/claims docs/results/claims.tar.xz \
    --archive=claims

The archive has the results of every finished run in the folder, with the files
whose digests they state, or the error of a run that has diverged. It is sorted
by name and without times, so that equal runs make equal archives. The line of
the archive in `SHA256SUMS` beside it is replaced; `sha256sum -c SHA256SUMS`
checks it. With `--archive=NAME`, runs that this archive of
`benchmarks.judge_published` does not have are left out, and printed.
"""

import hashlib
import io
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from absl import app, flags

from benchmarks import judge_published
from fedreid_jax.apps.papers import rates, runner
from fedreid_jax.training.files import recorder, run_files, sealed

FILES = ('results.json', 'queries.npz')
STATED = (run_files.CONFIG,)  # to which results refer by its digest
SUMS = 'SHA256SUMS'
_ARCHIVE = flags.DEFINE_enum(
  'archive', None, [*judge_published.ARCHIVES], 'Only runs of this archive.'
)


def pack(runs: list[Path]) -> bytes:
  """Returns a compressed archive of runs."""
  each = (run / name for run in runs for name in _names(run))
  found = filter(Path.is_file, each)
  return packed({f'{x.parent.name}/{x.name}': x.read_bytes() for x in found})


def packed(files: Mapping[str, bytes]) -> bytes:
  """Returns a compressed archive of files by name, without times."""
  written = io.BytesIO()
  with tarfile.open(fileobj=written, mode='w:xz') as archive:
    for name, content in files.items():
      found = tarfile.TarInfo(name)
      found.size = len(content)
      archive.addfile(found, io.BytesIO(content))
  return written.getvalue()


def _names(run: Path) -> list[str]:
  """The files without which a study takes a run for damaged."""
  if not (run / recorder.RESULTS).is_file():
    return [runner.ERROR]
  described = recorder.read_object(run / recorder.RESULTS)
  # A run that diverges late has written results, and its error as well.
  names = *FILES, *STATED, *described.get(sealed.FILES, ()), runner.ERROR
  return [*dict.fromkeys(names)]


def record(path: Path) -> None:
  """Writes the digest of an archive beside it."""
  sums = path.with_name(SUMS)
  lines = sums.read_text().splitlines() if sums.exists() else []
  kept = [line for line in lines if line.split()[1] != path.name]
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  kept = sorted([*kept, f'{digest}  {path.name}'], key=lambda x: x.split()[1])
  sums.write_text('\n'.join(kept) + '\n')


def _has_ended(run: Path) -> bool:
  note = run / runner.ERROR
  return all((run / name).is_file() for name in FILES) or (
    note.is_file() and rates.is_divergence(note.read_text())
  )


def main(argv: list[str]) -> None:
  """Writes the archive and its digest."""
  folder, path = Path(argv[1]), Path(argv[2])
  runs = sorted(x for x in folder.iterdir() if _has_ended(x))
  if _ARCHIVE.value:
    found = judge_published.ARCHIVES[_ARCHIVE.value].plan(folder)
    wanted = {cell.workdir.name for cell in found.cells()}
    for run in (x for x in runs if x.name not in wanted):
      print(f'left out: {run.name}')
    runs = [x for x in runs if x.name in wanted]
  path.write_bytes(pack(runs))
  record(path)
  print(f'{len(runs)} runs in {path}')


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
