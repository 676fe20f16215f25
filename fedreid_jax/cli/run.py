"""Common flags of the commands, and the steps around the work of each."""

import difflib
import functools
import hashlib
import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import app, flags

from fedreid_jax import errors
from fedreid_jax.cli import command_line, failures, help, streams
from fedreid_jax.config import (
  load,
  parsing,
  recipes,
  schema,
  validation,
)

FLAGS = flags.FLAGS
FULL = {'--helpfull', '-helpfull'}
_CONFIG = flags.DEFINE_string(
  'config',
  None,
  'Recipe: FILE[:PRESET[,FIELD=VALUE...]]. --config.FIELD=VALUE changes a '
  'field, and --helpfull lists all of them.',
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Work directory (default: a folder under runs/).'
)
_DEBUG = flags.DEFINE_bool('debug', False, 'Show tracebacks.')
_DISTRIBUTED = flags.DEFINE_string(
  'distributed',
  'off',
  'Run on several processes: off, auto (a cluster that JAX detects), or '
  'HOST:PORT,NUM_PROCESSES,PROCESS_ID.',
)
_RENDEZVOUS = flags.DEFINE_integer(
  'rendezvous_s', 600, 'Seconds to wait for other processes at the start.', 1
)
_HEARTBEAT = flags.DEFINE_integer(
  'heartbeat_s', 30, 'Seconds until a process that does not respond is lost.', 1
)
_WORKERS = flags.DEFINE_integer(
  'workers',
  1,
  'sweep, table, study: processes that train runs at the same time, each on a '
  'GPU or, without one, on its share of the cores.',
  1,
)

# The configuration of the command line: one element, or none without a recipe.
_given: list[Any] = []


def start(command: ModuleType) -> None:
  """Parses the command line and runs a command.

  Args:
    command: module with `main(argv)` and the flags of the command; a constant
      `RECIPE` is the default of `--config`.
  """
  streams.open_all()
  # Before absl, whose own `--help` lists the flags of libraries, too, and no
  # fields.
  if help.ASKED & {*sys.argv[1:]}:
    fields = bool(FULL & {*sys.argv[1:]})
    print(help.text(sys.argv[0], command, sys.modules[__name__], fields))
    return
  parse = functools.partial(_parse, getattr(command, 'RECIPE', None))
  app.run(command.main, argv=sys.argv, flags_parser=parse)


def guarded(
  argv: list[str], body: Callable[[], None], with_jax: bool = True
) -> None:
  """Runs a command; a failure is one line and a documented exit code.

  Args:
    argv: name of the program and arguments that are no flags; any argument is
      an error.
    body: the work of the command.
    with_jax: whether the command computes with JAX.
  """

  def run():
    if len(argv) > 1:
      raise errors.ConfigError(
        f'stray argument {argv[1]!r}', 'command line', 'start flags with --'
      )
    if _given and (root := _given[0].data.get('root')):
      from fedreid_jax.data import files

      # Before the import of JAX, which takes seconds.
      files.check_root(root)
    # With several workers each of them prepares JAX, and this process must not
    # reserve the GPUs.
    if with_jax and workers() == 1:
      _prepare_jax()
    body()
    if _DISTRIBUTED.value != 'off':
      from fedreid_jax.training.processes import peers

      # Not after an error: it waits for the other processes, and `failures`
      # ends this one.
      peers.leave()

  failures.exit_on_error(run, _DEBUG.value)


def config():
  """Returns the validated configuration of the command line."""
  if not _given:
    raise errors.ConfigError(
      'no configuration', 'command line', 'give --config=dfh'
    )
  return validation.validate(_given[0])


def saved_config(folder: Path, changes: list[str]):
  """Returns the configuration of a run, which is JSON and is not executed.

  Args:
    folder: work directory of the run.
    changes: KEY=VALUE pairs of fields to change.
  """
  if _CONFIG.value is not None:
    return config()
  return load.load_saved(folder, changes)


def given_workdir() -> Path:
  """Returns the work directory of the command line, which is required."""
  if not _WORKDIR.value:
    raise errors.ConfigError(
      'no work directory', 'command line', 'give the --workdir of a run'
    )
  return workdir()


def next_step(folder: Path, command: str) -> None:
  """Prints the work directory of a command, and a command to run next.

  Args:
    folder: the work directory.
    command: words after `fedreid`; `--workdir=DIR` is replaced by the folder.
  """
  here = Path.cwd()
  shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
  print(f'work directory: {shown}')
  given = shlex.quote(f'--workdir={shown}')
  words = command.replace('--workdir=DIR', given, 1)
  print(f'next: fedreid {words}')


def workers() -> int:
  """Returns the number of processes that train runs, `--workers`.

  Raises:
    ConfigError: if there are several and `--distributed` is given.
  """
  if _WORKERS.value > 1 and _DISTRIBUTED.value != 'off':
    raise errors.ConfigError(
      'a process of several cannot start workers', '--workers', 'use --shard'
    )
  return _WORKERS.value


def workdir() -> Path:
  """Returns the absolute work directory, by default named after the recipe."""
  if _WORKDIR.value:
    # The system calls would fail later with an error that does not name the
    # flag.
    # `report` and `visualize` take several, separated by commas.
    longest = max(map(len, _WORKDIR.value.split(',')))
    if '\0' in _WORKDIR.value or longest > 1000:
      raise errors.ConfigError('not a path', '--workdir', 'give a shorter one')
    return Path(_WORKDIR.value).expanduser().absolute()
  # The digest gives runs with other fields other folders, and the same command
  # the same one, where it resumes.
  chosen = config()
  return Path(
    'runs', f'{chosen.name}-seed{chosen.seed}-{digest(chosen)}'
  ).absolute()


def digest(chosen: Any) -> str:
  """Returns eight hexadecimal digits that identify a configuration."""
  identity = schema.identity(chosen).to_json_best_effort()
  return hashlib.sha256(identity.encode()).hexdigest()[:8]


def _parse(default: str | None, argv: list[str]) -> list[str]:
  parsed: list[str] = []

  # A function, so that errors of the command line are reported like all others.
  # `--debug` is not parsed yet when it is needed.
  def parse():
    args = [_resolved(arg) for arg in argv[1:]]
    spec = command_line.recipe(args, FLAGS) or default
    config = recipes.recipe(spec) if spec else None
    if spec:
      # Names of plug-ins are set first, because plug-ins declare fields.
      named = command_line.values(args, FLAGS, schema.PLUGGED)
      config = parsing.change(config, named)
    fields = schema.fields(schema.plug_ins(config) if spec else ())
    rest, pairs = command_line.read(args, FLAGS, fields)
    try:
      parsed.extend(FLAGS([argv[0], *rest]))
    except flags.UnrecognizedFlagError as error:
      raise errors.ConfigError(
        f'unknown flag --{error.flagname}',
        'command line',
        _nearest(error.flagname, fields),
      ) from error
    except flags.Error as error:
      raise errors.ConfigError(
        str(error), 'command line', 'see --help'
      ) from error
    _refuse_infinite()
    if pairs and not spec:
      raise errors.ConfigError(
        'a field without a configuration',
        f'--config.{pairs[0]}',
        'give --config',
      )
    if spec:
      # Locked: a mistyped assignment in a command must not add a field.
      _given[:] = [parsing.change(config, pairs).lock()]

  failures.exit_on_error(parse, '--debug' in argv)
  return parsed


def _refuse_infinite() -> None:
  """Refuses `nan` and `inf`, which pass the bounds of a flag in absl."""
  for name in FLAGS:
    value = FLAGS[name].value
    if isinstance(value, float) and not math.isfinite(value):
      raise errors.ConfigError('not finite', f'--{name}', 'give a number')


def _nearest(name: str, fields: Iterable[str]) -> str:
  """Returns a hint with the nearest flag of the command or of a field."""
  near = difflib.get_close_matches(name, list(FLAGS), 1)
  if near:
    return f'did you mean --{near[0]}?'
  hint = parsing.hint(name, list(fields))
  return f'a field is set by --{command_line.PREFIX}FIELD; {hint}'


def _resolved(arg: str) -> str:
  """Replaces the recipe of `--config=RECIPE` by the path of its file."""
  name, sign, value = arg.partition('=')
  if name.lstrip('-') != 'config' or not sign:
    return arg
  file, colon, preset = value.partition(':')
  found = recipes.find(file)
  if found:
    return f'{name}={found}{colon}{preset}'
  if not Path(file).is_file():
    raise recipes.missing(file)
  return arg


def _prepare_jax() -> None:
  """Prepares JAX, and joins other processes with --distributed."""
  from fedreid_jax.training.processes import process

  process.prepare_jax(os.cpu_count() or 1)
  if _DISTRIBUTED.value != 'off':
    from fedreid_jax.training.processes import peers

    peers.join(_DISTRIBUTED.value, _RENDEZVOUS.value, _HEARTBEAT.value)
