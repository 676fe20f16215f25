"""Packs the results of runs for the repository.

  python -m benchmarks.publish_runs runs/claims docs/results/claims.tar.xz

The archive has `results.json` and `queries.npz` of every finished run in the
folder, sorted by name and without times, so that equal runs make equal
archives. The line of the archive in `SHA256SUMS` beside it is replaced;
`sha256sum -c SHA256SUMS` checks it. Runs that no claim needs any more are left
out with `--claims`, which are then printed.
"""

import hashlib
import io
import sys
import tarfile
from pathlib import Path

from absl import app, flags

from fedreid_jax.apps.papers import study
from fedreid_jax.apps.papers.tables.index import CLAIMS

FILES = ('results.json', 'queries.npz')
SUMS = 'SHA256SUMS'
_CLAIMS = flags.DEFINE_bool('claims', False, 'Only runs of claims.')


def pack(runs: list[Path]) -> bytes:
  """Returns a compressed archive of runs."""
  packed = io.BytesIO()
  with tarfile.open(fileobj=packed, mode='w:xz') as archive:
    for path in (run / name for run in runs for name in FILES):
      found = tarfile.TarInfo(f'{path.parent.name}/{path.name}')
      found.size = path.stat().st_size
      archive.addfile(found, io.BytesIO(path.read_bytes()))
  return packed.getvalue()


def record(path: Path) -> None:
  """Writes the digest of an archive beside it."""
  sums = path.with_name(SUMS)
  lines = sums.read_text().splitlines() if sums.exists() else []
  kept = [line for line in lines if line.split()[1] != path.name]
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  kept = sorted([*kept, f'{digest}  {path.name}'], key=lambda x: x.split()[1])
  sums.write_text('\n'.join(kept) + '\n')


def main(argv: list[str]) -> None:
  """Writes the archive and its digest."""
  folder, path = Path(argv[1]), Path(argv[2])
  runs = sorted(
    x for x in folder.iterdir() if all((x / name).is_file() for name in FILES)
  )
  if _CLAIMS.value:
    planned = study.plan(CLAIMS.values(), range(5), folder)
    wanted = {cell.workdir.name for cell in study.runs_of(planned)}
    for run in (x for x in runs if x.name not in wanted):
      print(f'left out: {run.name}')
    runs = [x for x in runs if x.name in wanted]
  path.write_bytes(pack(runs))
  record(path)
  print(f'{len(runs)} runs in {path}')


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
