"""Flags of every command, and the steps around the work of a command.

`parse` reads the command line, `guarded` runs the work of a command and turns
any failure into one line on stderr and an exit code.
"""

import difflib
import logging as standard_logging
import math
import os
import re
import shlex
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags, logging

from fedreid_jax import errors
from fedreid_jax.config import load, parsing, recipes, schema
from fedreid_jax.core import plugins

if TYPE_CHECKING:  # the import of all parts of a method takes a second
  from fedreid_jax.config.configuration import Config

FLAGS = flags.FLAGS
PREFIX = 'config.'  # begins the name of every flag of a field
_CONFIG = flags.DEFINE_string(
  'config',
  None,
  'Recipe: FILE[+COMPONENT...][:PRESET[,FIELD=VALUE...]]. '
  '--config.FIELD=VALUE changes a field, and --helpfull lists all of them.',
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Work directory (default: a folder under runs/).'
)
_PLUGIN = flags.DEFINE_multi_string(
  'plugin',
  [],
  'Module of a plug-in that a saved run may name although it is not installed.',
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
  'sweep, tune, compare, table, study: processes that train runs at the same '
  'time, each on a GPU or, without one, on its share of the cores.',
  1,
)

# XLA and CUDA report a lack of memory only in the text of an error.
_MEMORY = re.compile(
  r'RESOURCE_EXHAUSTED|out of memory|OUT_OF_MEMORY|std::bad_alloc'
  r'|Unable to allocate|ALLOC_FAILED',
  re.IGNORECASE,
)
# Warnings for users: printed without the line of source that Python adds.
LINES = (
  *(errors.DamagedCheckpointWarning, errors.DamagedRecordWarning),
  errors.ExposedSecretWarning,
)
LOWER = 'lower local.batch or set execution.image_budget_mb'

# The configuration of the command line: one element, or none without a recipe.
_given: list[Any] = []


# The functions define a flag of the command that calls them.
flags.disclaim_key_flags()


def define_checkpoint() -> flags.FlagHolder[str]:
  """Defines `--checkpoint`, for commands that read the models of a run."""
  return flags.DEFINE_string(
    'checkpoint',
    'latest',
    "Checkpoint: 'latest', 'best' or the number of a step.",
  )


def define_set() -> flags.FlagHolder[list[str]]:
  """Defines `--set`, for commands that read the configuration of a run."""
  return flags.DEFINE_multi_string(
    'set', [], 'KEY=VALUE; changes a field of the configuration.'
  )


def guarded(
  argv: list[str], body: Callable[[], None], with_jax: bool = True
) -> None:
  """Runs a command; a failure is one line and a documented exit code.

  `argv` is the name of the program and arguments that are no flags; any
  argument is an error.
  """

  def run():
    if len(argv) > 1:
      stray = f'stray argument {argv[1]!r}'
      raise errors.ConfigError(stray, 'command line', _way(argv[1]))
    for name in _PLUGIN.value:
      plugins.allow(name)
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

      # Not after an error: it waits for the other processes, and
      # `exit_on_error` ends this one.
      peers.leave()

  exit_on_error(run, _DEBUG.value)


def _way(stray: str) -> str:
  """How an argument that is no flag is given."""
  path = Path(stray)
  if 'root' in FLAGS and path.is_dir():
    return f'give --root={stray}'
  # The description of a run, see `training.files.run_files`.
  if (path / 'run.json').is_file():
    return f'give --workdir={stray}'
  return 'start flags with --'


def config() -> 'Config':
  """Returns the validated configuration of the command line.

  Raises:
    ConfigError: for no recipe, or a configuration that is not valid.
  """
  if not _given:
    raise errors.ConfigError(
      'no configuration', 'command line', 'give --config=dfh'
    )
  from fedreid_jax.config import validation  # imports JAX, in a second

  return validation.validate(_given[0])


def saved_config(folder: Path, changes: list[str]) -> 'Config':
  """Reads the configuration of a run as JSON and changes it by KEY=VALUE."""
  if _CONFIG.value is not None:
    return config()
  return load.load_saved(folder, changes)


def given_workdir() -> Path:
  """Returns the work directory of the command line.

  Raises:
    ConfigError: if there is none.
  """
  if not _WORKDIR.value:
    raise errors.ConfigError(
      'no work directory', 'command line', 'give the --workdir of a run'
    )
  return workdir()


def given_workdirs() -> list[Path]:
  """Returns the work directories of `--workdir=DIR,DIR`.

  Raises:
    ConfigError: if there is none.
  """
  given_workdir()
  names = (_WORKDIR.value or '').split(',')
  return [Path(name).expanduser().absolute() for name in names]


def next_step(folder: Path, command: str) -> None:
  """Prints the work directory of a command, and a command to run next.

  In the words after `fedreid`, `--workdir=DIR` is replaced by the folder.
  """
  here = Path.cwd()
  shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
  print(f'work directory: {shown}')
  given = shlex.quote(f'--workdir={shown}')
  words = command.replace('--workdir=DIR', given, 1)
  print(f'next: fedreid {words}')


def plain(value: Any) -> Any:
  """Returns named tuples, and those in dictionaries, as objects for JSON."""
  if hasattr(value, '_asdict'):
    value = value._asdict()
  if isinstance(value, dict):
    return {name: plain(one) for name, one in value.items()}
  return value


def workers() -> int:
  """The number of processes that train runs, `--workers`.

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
    # flag. `report` and `visualize` take several, separated by commas.
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


def digest(chosen: 'Config') -> str:
  """Eight hexadecimal digits that identify a configuration."""
  # Only fields that differ from their defaults, so that a later version with
  # more methods finds the same folder.
  changed = parsing.changed(schema.identity(chosen))
  return parsing.digest([*changed.items()])


def parse(default: str | None, argv: list[str]) -> list[str]:
  """Parses flags with a default recipe; returns the words that are no flags."""
  parsed: list[str] = []

  # A function, so that errors of the command line are reported like all others.
  def read() -> None:
    args = [_resolved(arg) for arg in argv[1:]]
    # The recipe may bring plug-ins, which declare fields: none is known yet.
    given = {one.name: one.value for one in _flags_in(args, FLAGS, {})}
    spec = given.get('config') or default
    config: Any = recipes.recipe(spec) if spec else None
    if spec:
      plugged = [f for f in schema.PLUGGED if PREFIX + f in given]
      named = [f'{field}={given[PREFIX + field]}' for field in plugged]
      config = parsing.change(config, named)
    fields: Mapping[str, Any] = {}
    # The import of what declares the fields takes a second.
    if spec or any(arg.startswith('-') for arg in args):
      fields = schema.fields(schema.named(config) if config else ())
    rest, pairs = read_flags(args, FLAGS, fields)
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
    for name in FLAGS:
      value = FLAGS[name].value
      # `nan` and `inf` pass the bounds of a flag in absl.
      if isinstance(value, float) and not math.isfinite(value):
        raise errors.ConfigError('not finite', f'--{name}', 'give a number')
    if pairs and not spec:
      raise errors.ConfigError(
        'a field without a configuration',
        f'--config.{pairs[0]}',
        'give --config',
      )
    if spec:
      parsing.check_once(pairs, 'command line')
      # Locked: a mistyped assignment in a command must not add a field.
      _given[:] = [parsing.change(config, pairs).lock()]

  # `--debug` is not parsed yet when it is needed.
  exit_on_error(read, '--debug' in argv)
  return parsed


def _nearest(name: str, fields: Iterable[str]) -> str:
  """A hint with the nearest flag of the command or of a field."""
  near = difflib.get_close_matches(name, list(FLAGS), 1)
  if near:
    return f'did you mean --{near[0]}?'
  hint = parsing.hint(name, list(fields))
  return f'a field is set by --{PREFIX}FIELD; {hint}'


def _resolved(arg: str) -> str:
  """Replaces the recipe of `--config=RECIPE` by the path of its file."""
  name, sign, value = arg.partition('=')
  if name.lstrip('-') != 'config' or not sign:
    return arg
  file = recipes.read(value).file
  found = recipes.find(file)
  if found:
    return f'{name}={found}{value.removeprefix(file)}'
  if not Path(file).is_file():
    raise recipes.missing(file)
  return arg


def _prepare_jax() -> None:
  from fedreid_jax.training.processes import process

  process.prepare_jax(os.cpu_count() or 1)
  if _DISTRIBUTED.value != 'off':
    from fedreid_jax.training.processes import peers

    peers.join(_DISTRIBUTED.value, _RENDEZVOUS.value, _HEARTBEAT.value)


class _Word(NamedTuple):
  """A flag, or another word, of the command line."""

  name: str  # '' for a word that is no flag
  value: str
  words: tuple[str, ...]  # of the command line


def read_flags(
  args: Sequence[str], known: flags.FlagValues, fields: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
  """Separates `--config.FIELD` flags from those that absl parses.

  Returns the other arguments, and FIELD=VALUE of every flag of a field.
  `known` are all other flags, and `fields` declarations by full name.

  Raises:
    ConfigError: a flag is given twice (the message has both values), or a
      field does not exist (the message has the nearest name).
  """
  seen: dict[str, str] = {}
  rest, pairs = [], []
  for name, value, words in _flags_in(args, known, fields):
    field = name.removeprefix(PREFIX)
    if name and field != name:
      if field not in fields:
        raise errors.ConfigError(
          f'unknown field {field!r}', f'--{name}', parsing.hint(field, fields)
        )
      pairs.append(f'{field}={value}')
    else:
      rest += words
    # absl keeps the last of two values and says nothing about the first.
    if name in seen:
      raise errors.ConfigError(
        f'--{name} twice: {seen[name]!r} and {value!r}',
        'command line',
        'give it once',
      )
    # `DEFINE_multi_string` flags, such as --set, collect all their values.
    repeats = name in known and isinstance(known[name], flags.MultiFlag)
    if name and not repeats:
      seen[name] = value
  return rest, pairs


def _flags_in(
  args: Sequence[str], known: flags.FlagValues, fields: Mapping[str, Any]
) -> Iterator[_Word]:
  """Yields all words with absl's syntax."""

  # A flag is `--name=value` or `--name value`, with one dash or two. A boolean
  # flag can also be `--name` or `--noname`.
  def is_boolean(name: str) -> bool:
    if name in known:
      return known[name].boolean
    field = fields.get(name.removeprefix(PREFIX))
    return field is not None and field.kind is bool

  left = iter(args)
  for arg in left:
    # A name begins with a letter, so a negative number is no flag. DOTALL: a
    # value may contain line breaks.
    match = re.match(r'--?([a-zA-Z][^=]*)(=?)(.*)', arg, re.DOTALL)
    if not match:
      yield _Word('', '', (arg,))
      continue
    name, sign, value = match.groups()
    # `--dry-run` means `--dry_run`, but the name of a field is taken as it is.
    if not name.removeprefix('no').startswith(PREFIX):
      name = name.replace('-', '_')
    words = (f'--{name}{sign}{value}',)
    if not sign and is_boolean(name):
      value = 'true'
    elif not sign and (
      name.startswith(f'no{PREFIX}')
      or (name.startswith('no') and is_boolean(name[2:]))
    ):
      name, value = name[2:], 'false'
    elif not sign:
      # The next word is the value even if it looks like a flag, as in absl.
      more = next(left, None)
      value = more or ''
      words = words if more is None else (*words, more)
    yield _Word(name, value, words)


def quiet() -> None:
  """Silences libraries, so that the line of an error stands alone."""
  logging.set_verbosity(logging.FATAL)
  standard_logging.getLogger('asyncio').setLevel(standard_logging.CRITICAL)
  # Destructors and threads that fail during the exit would print tracebacks.
  sys.unraisablehook = lambda _: None
  threading.excepthook = lambda _: None
  others = warnings.showwarning

  def show(message: Any, category: type[Warning], *where: Any, **more: Any):
    if issubclass(category, LINES):
      print(f'warning: {errors.printable(str(message))}', file=sys.stderr)
    else:
      others(message, category, *where, **more)

  warnings.showwarning = show


def exit_on_error(body: Callable[[], None], debug: bool) -> None:
  """Runs a command; with `debug` a failure also prints its traceback."""
  if not debug:
    quiet()
  try:
    body()
    # A full disk behind a redirected stdout is an error of the command, too.
    sys.stdout.flush()
  except Exception as error:
    if debug:
      traceback.print_exc()
    failure = explain(error)
    print(failure.line(), file=sys.stderr, flush=True)
    # A normal exit would wait for the other processes.
    if (peers := _peers()) and peers.joined():
      peers.abandon(failure.exit_code)
    # It would also wait for a thread of `round.ahead.start`, for minutes.
    if _is_compiling():
      sys.stdout.flush()
      os._exit(failure.exit_code)
    sys.exit(failure.exit_code)


def _peers() -> Any:
  # Looked up, because an import would bring JAX into commands without it.
  return sys.modules.get('fedreid_jax.training.processes.peers')


def _is_compiling() -> bool:
  if not (ahead := sys.modules.get('fedreid_jax.round.ahead')):
    return False
  names = [thread.name for thread in threading.enumerate()]
  return any(name.startswith(ahead.COMPILER) for name in names)


def explain(error: Exception) -> errors.FedReIDError:
  """Converts any exception to one with a documented code."""
  if isinstance(error, errors.FedReIDError):
    return error
  text = str(error)
  short = (text.splitlines() or [''])[0][:300]
  # Tested first: the loss of a process may look like one of the causes below.
  if (peers := _peers()) and peers.is_loss(error):
    return peers.lost()
  if isinstance(error, OSError) or errors.disk_is_full(error):
    where = getattr(error, 'filename', None) or 'disk'
    reason = getattr(error, 'strerror', None) or short
    return errors.ResourceError(reason, str(where), 'check the disk')
  if isinstance(error, MemoryError) or _MEMORY.search(text):
    return errors.ResourceError(short or 'out of memory', 'memory', LOWER)
  frame = traceback.extract_tb(error.__traceback__)[-1]
  return errors.InternalError(
    f'{type(error).__name__}: {short}',
    f'{os.path.basename(frame.filename)}:{frame.lineno}',
    errors.REPORT,
  )
