"""The commands and their flags as Markdown, for the site.

`python -m fedreid_jax.cli.reference` prints them, and `fedreid COMMAND --help`
the same as plain text.
"""

import importlib
import inspect
import multiprocessing
import re
from collections.abc import Iterable

from absl import flags

from fedreid_jax.cli import program, run
from fedreid_jax.config.reference import escaped

_KINDS = {
  'string': 'text',
  'bool': 'yes or no',
  'int': 'integer',
  'float': 'number',
  'comma separated list of strings': 'list `A,B`',
  'multi string': 'text, can be repeated',
}


def markdown() -> str:
  """Returns a table of the commands, and a section for each of them."""
  names = program.commands()
  lines = ['| command | what it does |', '|---|---|']
  lines += [
    f'| [`{name}`](#{name}) | {escaped(_purpose(module))} |'
    for name, module in names.items()
  ]
  parts = ['\n'.join(lines)]
  # Each in a process of its own, because two commands may define one flag.
  context = multiprocessing.get_context('fork')
  with context.Pool(1, maxtasksperchild=1) as pool:
    parts += pool.starmap(_section, names.items(), chunksize=1)
  of_all = flags.FLAGS.get_key_flags_for_module(run.__name__)
  parts.append(f'## Flags of every command\n\n{table(of_all)}')
  return '\n\n'.join(parts) + '\n'


def table(given: Iterable[flags.Flag]) -> str:
  """Returns the Markdown table of flags."""
  lines = ['| flag | value | default | meaning |', '|---|---|---|---|']
  for flag in sorted(given, key=lambda flag: flag.name):
    default = program.default(flag)
    # absl puts the choices before the text.
    meaning = re.sub(r'^<[^>]*>: ', '', program.meaning(flag))
    cells = (
      f'`{program.shape(flag).partition("=")[0]}`',
      kind(flag),
      f'`{default}`' if default else '',
      escaped(' '.join(meaning.split())),
    )
    lines.append(f'| {" | ".join(cells)} |')
  return '\n'.join(lines)


def kind(flag: flags.Flag) -> str:
  """Returns what values a flag takes, such as 'integer, at least 1'."""
  choices = getattr(flag.parser, 'enum_values', None)
  if choices:
    return ', '.join(f'`{one}`' for one in choices)
  limits = (
    ('at least', getattr(flag.parser, 'lower_bound', None)),
    ('at most', getattr(flag.parser, 'upper_bound', None)),
  )
  given = [f'{text} {limit}' for text, limit in limits if limit is not None]
  name = _KINDS.get(flag.flag_type(), flag.flag_type())
  return ', '.join((name, *given))


def _purpose(module: str) -> str:
  return program.first_line(module).partition(': `')[0].rstrip('.')


def _section(name: str, module: str) -> str:
  command = importlib.import_module(module)
  usage, _, rest = (inspect.getdoc(command) or '').partition('\n')
  usage = usage.partition(': `')[2].rpartition('`')[0] or f'fedreid {name}'
  parts = [f'## {name}', f'{escaped(_purpose(module))}.']
  parts += [f'```\n{usage}\n```', *map(_block, _paragraphs(rest))]
  if own := flags.FLAGS.get_key_flags_for_module(module):
    parts.append(table(own))
  return '\n\n'.join(parts)


def _paragraphs(text: str) -> list[str]:
  return [part for part in re.split(r'\n\s*\n', text.strip('\n')) if part]


def _block(text: str) -> str:
  """Returns a paragraph of a docstring; indented ones are code."""
  lines = text.split('\n')
  if all(line.startswith('  ') for line in lines):
    return '```\n' + inspect.cleandoc('\n' + text) + '\n```'
  return escaped(text)


if __name__ == '__main__':
  print(markdown(), end='')
