"""Commands in fenced blocks of pages, and what is wrong with them.

Words in capitals, such as DIR, stand for a value, and modules `mine.NAME` and
`mypkg.NAME` for those of a reader.
"""

import functools
import re
import shlex
from collections.abc import Iterator

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.papers.tables import index
from fedreid_jax.cli import completion, program, run
from fedreid_jax.config import parsing, recipes, schema, validation

FENCED = re.compile(r'^( *)```([\w-]*)[^\n]*\n(.*?)^\1```', re.S | re.M)
LINE = re.compile(r'\s*(?:[$%>] )?(?:[A-Z_]+=\S* )*fedreid\s')
OTHER = {'python', 'pycon', 'py', 'json', 'yaml', 'toml', 'html', 'diff'}
THEIRS = re.compile(r'\b(?:mine|mypkg)\.(\w+)')
PLACEHOLDER = re.compile(r'(?<![\w-])[A-Z][A-Z0-9_]*(?![\w-])|\$|\.\.\.')
FIRST = completion.first_words() | {'table': [*index.TABLES]}
# Their words are files or modules.
FREE = {'search', 'serve', 'import-weights', 'check-component'}


def commands(text: str) -> Iterator[list[str]]:
  """Yields the words of every `fedreid` command in the blocks of a page."""
  for _, language, block in FENCED.findall(text):
    if language not in OTHER:
      yield from _in_block(block)


def _in_block(block: str) -> Iterator[list[str]]:
  lines = re.sub(r'\\\n\s*', ' ', block).splitlines()
  for line, after in zip(lines, [*lines[1:], ''], strict=True):
    # A page may show the error of a command that is wrong.
    if not after.startswith('error[') and LINE.match(line):
      yield from _simple(_words(line))


def _words(line: str) -> list[str]:
  line = re.sub(r'\[(--[^\]]*)\]', r'\1', line)  # an optional flag
  try:
    return _split(line)
  except ValueError:  # the last line of a quoted script
    return _split(line.rstrip('"\''))


def _split(line: str) -> list[str]:
  reader = shlex.shlex(line, posix=True, punctuation_chars='|&;<>()')
  reader.whitespace_split = True
  return [*reader]


def _simple(words: list[str]) -> Iterator[list[str]]:
  """Yields the commands of a pipe or list, from `fedreid` to its end."""
  own: list[str] | None = None
  for word in [*words, ';']:
    if own is not None and set(word) <= set('|&;<>()'):
      yield own
      own = None
    elif own is not None:
      own.append(word)
    elif word == 'fedreid':
      own = []


def problem(words: list[str]) -> str:
  """Returns what is wrong with the words after `fedreid`, '' if nothing is."""
  command, *args = words or ['']
  if PLACEHOLDER.fullmatch(command) or command in ('--help', '--version'):
    return ''
  if command not in program.commands():
    return f'no command {command!r}'
  try:
    _check(command, args)
  except (errors.FedReIDError, flags.Error) as error:
    return f'fedreid {shlex.join(words)}: {error}'
  return ''


def _check(command: str, args: list[str]) -> None:
  known = _flags(command)
  plugged = {name for arg in args for name in THEIRS.findall(arg)}
  # `--claims` may have no value.
  args = [
    '--claims=all' if arg == '--claims' else arg
    for arg in args
    if arg != '--flags' and not _is_of(arg, plugged)
  ]
  rest, pairs = run.read_flags(args, known, _fields())
  _, *given = known([command, *rest])
  pairs += (known['set'].value or []) if 'set' in known else []
  specs = known['config'].value or []
  if program.takes_recipe(program.commands()[command]):
    specs, given = [*specs, *given[:1]], given[1:]
  elif command == 'compare':
    specs, given = given, []
  elif command in FIRST:
    _one_of(given, FIRST[command])
    given = given[1:]
  elif command in FREE:
    given = []
  if command != 'list' and (stray := [w for w in given if w != '...']):
    raise errors.ConfigError(f'stray word {stray[0]!r}', command)
  for pair in pairs:
    _check_field(pair)
  for spec in specs:
    config = _recipe(spec)
    # The modules of a reader are not here.
    if config is not None and command == 'train' and not plugged:
      _validate(config, spec, pairs)


def _is_of(arg: str, plugged: set[str]) -> bool:
  """Whether a flag sets a field of a reader's module, names one, or FIELD."""
  found = re.match(r'--config\.(\w+)', arg)
  return bool(found) and bool(
    THEIRS.search(arg) or found[1] in plugged or found[1].isupper()
  )


@functools.cache
def _names(command: str) -> tuple[str, ...]:
  module = program.commands()[command]
  return (*completion.flags_of(module), *completion.flags_of(run.__name__))


def _flags(command: str) -> flags.FlagValues:
  known = flags.FlagValues()
  for name in dict.fromkeys((*_names(command), '--help', '--helpfull')):
    if name.endswith('='):
      define = flags.DEFINE_multi_string
      define(name[2:-1], [], '', flag_values=known)
    elif name[2:] not in known:
      flags.DEFINE_bool(name[2:], False, '', flag_values=known)
  return known


@functools.cache
def _fields():
  return schema.fields(schema.evaluators_of_package())


def _one_of(given, names) -> None:
  if given and not PLACEHOLDER.search(given[0]) and given[0] not in names:
    raise errors.ConfigError(f'{given[0]!r} is unknown', 'command', '')


def _check_field(pair: str) -> None:
  name, _, value = pair.partition('=')
  name = name.removesuffix('+')
  if name not in _fields() and not PLACEHOLDER.search(name):
    raise errors.ConfigError(f'no field {name!r}', pair)
  if not PLACEHOLDER.search(value):
    extra = name.partition('.')[0] in ('open_set', 'roc', 'backdoor')
    if not extra and not THEIRS.search(value):
      parsing.change(schema.default(), [pair.replace('+=', '=', 1)])


def _recipe(spec: str):
  """Returns the configuration of a recipe; None for one that is not here."""
  file = recipes.read(spec).file
  if file.endswith('.py') and not file.startswith('configs/'):
    return None  # of a reader
  groups = tuple(f'{name}.' for name in THEIRS.findall(spec))
  spec = re.sub(r'\+(?:mine|mypkg)\.\w+', '', spec)
  pairs = parsing.split(spec.partition(':')[2], ',')
  kept = [
    pair
    for pair in pairs
    if not (PLACEHOLDER.search(pair) or THEIRS.search(pair))
    and not (groups and pair.startswith(groups))
  ]
  spec = ':'.join(filter(None, (spec.partition(':')[0], ','.join(kept))))
  if PLACEHOLDER.search(spec):
    return None
  return recipes.recipe(spec)


def _validate(config, spec: str, pairs: list[str]) -> None:
  # The folder of photographs decides what is valid.
  if ':photos' not in spec:
    kept = [pair for pair in pairs if not PLACEHOLDER.search(pair)]
    validation.validate(parsing.change(config, kept))
