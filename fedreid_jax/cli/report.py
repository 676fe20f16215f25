"""Write a page about runs: `fedreid report --workdir=DIR[,DIR...]`.

  fedreid report --workdir=runs/first
  fedreid report --workdir=runs/dfh-0,runs/dfh-1,runs/fedpav-0 --out=all.html

The page is one file that includes its pictures. It shows the configuration,
versions, data and clients, learning curves, results with intervals, match
curves, distances of right and wrong pairs, the best and the worst ranked lists,
the bytes that were sent by their content, and guarantees and audits of privacy
in plain words. Runs that differ only in their seed share a label, with a band
over the seeds; their ranked lists are those of the first run. The page is
written to DIR/report.html, or to `--out=FILE`. The command needs
fedreid_jax[viz].
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run
from fedreid_jax.config import parsing

_OUT = flags.DEFINE_string('out', '', 'File to write (default: report.html).')
_CHECKPOINT = run.define_checkpoint()


def main(argv: list[str]) -> None:
  """Writes the page and prints its path."""

  def body():
    folders = run.given_workdirs()
    out = Path(_OUT.value or folders[0] / 'report.html').expanduser()
    if out.suffix != '.html':
      raise errors.ConfigError(
        f'no page {out.suffix!r}', str(out), 'give a name that ends in .html'
      )
    from fedreid_jax.figures import canvas, report_page
    from fedreid_jax.training.files import atomic

    # Before the runs are read, which takes longer.
    canvas.new(1, 1)  # raises an error without Matplotlib
    atomic.write_text(out, report_page.page(_labelled(folders)))
    print(out)
    run.next_step(
      folders[0], 'search --workdir=DIR --gallery=FOLDER --query=IMAGE'
    )

  run.guarded(argv, body)


def _labelled(folders: Sequence[Path]) -> list[Any]:
  """Groups runs whose configurations differ at most in the seed."""
  from fedreid_jax.figures import canvas, report_page
  from fedreid_jax.training import loaded_run
  from fedreid_jax.training.files import run_files

  groups: dict[str, list[run_files.Recorded]] = {}
  for folder in folders:
    found = run_files.read(folder)
    if found.unchecked:
      print(f'note: {folder}: {found.unchecked}')
    fields = parsing.flatten(found.config)
    key = repr(sorted((k, v) for k, v in fields.items() if k != 'seed'))
    groups.setdefault(key, []).append(found)
  firsts = [own[0] for own in groups.values()]
  labels = canvas.labels(
    [one.config for one in firsts], [one.folder for one in firsts]
  )
  return [
    report_page.Labelled(
      label,
      own,
      parsing.changed(own[0].config),
      # Deferred: only some parts of the page need the parameters of a run.
      functools.partial(
        loaded_run.load, own[0].config, own[0].folder, _CHECKPOINT.value, ''
      ),
    )
    for label, own in zip(labels, groups.values(), strict=True)
  ]
