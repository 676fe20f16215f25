"""Flags that choose a model: of a run, or of a file of weights."""

import shlex
from typing import TYPE_CHECKING

from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run

if TYPE_CHECKING:
  from fedreid_jax.training.snapshot import Snapshot

_WEIGHTS = flags.DEFINE_string(
  'weights',
  None,
  'Weights in place of a run: a name of `fedreid list weights`, or the path of '
  'a .safetensors file.',
)
_MODEL = flags.DEFINE_string(
  'model',
  '',
  "'cluster:I' or 'client:NAME' (default: the server's model, or the first).",
)
_CHECKPOINT = run.define_checkpoint()
_CHANGES = run.define_set()


def check() -> None:
  """Raises ConfigError unless the flags choose one model."""
  if _WEIGHTS.value is None:
    if not run.FLAGS.workdir:
      raise errors.ConfigError(
        'no model',
        'command line',
        'give the --workdir of a run, or --weights=NAME',
      )
    run.given_workdir()
    return
  if run.FLAGS.workdir:
    raise errors.ConfigError(
      f'two models, of {run.FLAGS.workdir} and of {_WEIGHTS.value}',
      '--weights',
      'give --workdir or --weights',
    )
  for flag in (_CHECKPOINT, _MODEL):
    if flag.present:
      raise errors.ConfigError(
        'weights are one model', f'--{flag.name}', 'leave the flag out'
      )


def weights() -> str | None:
  """Returns the name of weights, None for the model of a run."""
  return _WEIGHTS.value


def checkpoint() -> tuple[str, str]:
  """Returns the checkpoint of a run and the name of its model."""
  return _CHECKPOINT.value, _MODEL.value


def changes() -> list[str]:
  """Returns KEY=VALUE pairs of fields to change."""
  return _CHANGES.value


def load() -> 'Snapshot':
  """Loads the model that the flags choose."""
  check()
  from fedreid_jax.training import snapshot, weights_model

  source = str(
    run.given_workdir()
    if _WEIGHTS.value is None
    else weights_model.PREFIX + _WEIGHTS.value
  )
  return snapshot.load_changed(source, *checkpoint(), changes())


def source() -> str:
  """The folder or the file of the model, for lines about it."""
  return str(run.FLAGS.workdir or _WEIGHTS.value)


def next_step(command: str, *more: str) -> None:
  """Prints a command with the flags that choose the model, and more flags."""
  words = [
    f'--{flag.name}={flag.value}'
    for flag in (_CHECKPOINT, _MODEL)
    if flag.present
  ]
  words += [f'--set={pair}' for pair in changes()]
  if _WEIGHTS.value is None:
    line = f'{command} --workdir=DIR {shlex.join([*words, *more])}'
    run.next_step(run.given_workdir(), line)
  else:
    words.insert(0, f'--weights={_WEIGHTS.value}')
    print(f'next: fedreid {command} {shlex.join([*words, *more])}')
