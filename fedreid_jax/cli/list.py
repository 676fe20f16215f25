"""List names: `fedreid list KIND [WORD]`.

  fedreid list                  # recipes, components and evaluators
  fedreid list recipes          # recipes and their methods
  fedreid list presets dfh      # presets and options of a recipe
  fedreid list components       # parts of methods
  fedreid list evaluators       # values of evaluation.extra
  fedreid list datasets market  # published data sets and their options
  fedreid list tables           # tables of the papers
  fedreid list weights          # published weights, docs/zoo.md
  fedreid list fields lr        # fields of a configuration with this word

WORD selects the entries in which it occurs; case does not matter.
"""

import functools
import importlib.metadata
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType

from fedreid_jax import algorithms, errors
from fedreid_jax.cli import program, run
from fedreid_jax.config import recipes
from fedreid_jax.core import plugins
from fedreid_jax.evaluation import evaluators


def recipe_entries() -> list[str]:
  """Returns name and purpose of every recipe."""
  return [f'{name:<16} {recipes.about(name)}' for name in recipes.names()]


def preset_entries() -> list[str]:
  """Returns the presets and options of every recipe."""
  found = []
  for name in recipes.names():
    presets, choices = recipes.choices(name)
    lines = [
      f'{name}:{preset:<12} {_about(presets[preset])}' for preset in presets
    ]
    lines += [f'    {key}={"|".join(own)}' for key, own in choices.items()]
    found.append('\n'.join(lines))
  return found


def _about(preset: Callable[..., object]) -> str:
  return (preset.__doc__ or '').partition('\n')[0]


def component_entries() -> list[str]:
  """Returns lines of the components of this package and of plug-ins."""
  return _modules(algorithms, plugins.COMPONENT)


def evaluator_entries() -> list[str]:
  """Returns lines of the evaluators of this package and of plug-ins."""
  return _modules(evaluators, plugins.EVALUATOR)


def _modules(package: ModuleType, plugin: plugins.Plugin) -> list[str]:
  found = [
    f'{name:<18} {program.first_line(f"{package.__name__}.{name}")}'
    for name in plugins.available(package)
  ]
  # Plug-ins are listed by their entry points: no code of another package is
  # run.
  others = plugins.entry_points(plugin)
  return found + [f'{name:<18} of {others[name]}' for name in sorted(others)]


def data_set_entries() -> list[str]:
  """Returns names, protocols, options and notes of the data sets."""
  from fedreid_jax.data.datasets import registry

  found = []
  for dataset in registry.DATASETS.values():
    lines = [f'{dataset.name}: {dataset.title}; {dataset.protocol}']
    for option, choices in dataset.options.items():
      lines.append(f'    {option}={"|".join(map(str, choices))}')
    notes = [f'    {dataset.note}'] if dataset.note else []
    found.append('\n'.join([*lines, *notes]))
  return found


def weight_entries() -> list[str]:
  """Returns a line of each of the published weights."""
  return _weights()[1:]


def weight_head() -> str:
  """Returns the names of the columns of `weight_entries`."""
  return _weights()[0]


@functools.cache
def _weights() -> list[str]:
  """Lines of a table of weights, its names of columns first."""
  from fedreid_jax.models import weights
  from fedreid_jax.models.weights import zoo

  rows = [zoo.row(weights.find(name)) for name in weights.NAMES]
  table = [[*zoo.COLUMNS], *rows]
  widths = [max(map(len, column)) for column in zip(*table, strict=True)]
  numbers = {k for k, cell in enumerate(rows[0]) if cell[:1].isdigit()}
  return [
    ' '.join(
      cell.rjust(width) if k in numbers else cell.ljust(width)
      for k, (cell, width) in enumerate(zip(line, widths, strict=True))
    ).rstrip()
    for line in table
  ]


def field_entries() -> list[str]:
  """Returns lines of all fields of a configuration."""
  from fedreid_jax.config import reference

  return reference.entries()


KINDS: dict[str, Callable[[], list[str]]] = {
  'recipes': recipe_entries,
  'presets': preset_entries,
  'components': component_entries,
  'evaluators': evaluator_entries,
  'datasets': data_set_entries,
  'fields': field_entries,
  'weights': weight_entries,
}
# The names of the columns of kinds that are tables.
HEADS: dict[str, Callable[[], str]] = {'weights': weight_head}


def kinds() -> dict[str, Callable[[], list[str]]]:
  """Functions that list entries, by kind, also those of `fedreid.lists`."""
  found = importlib.metadata.entry_points(group='fedreid.lists')
  # Entry points are loaded when they are called; `one=one` binds the entry
  # point of this iteration.
  return KINDS | {one.name: lambda one=one: one.load()() for one in found}


# Kinds that are listed without a request. They are read and not imported,
# because the import of JAX takes a second.
READ = ('recipes', 'components', 'evaluators')


def _short() -> Iterator[str]:
  """Yields a block for each kind of `READ`, and the commands of the others."""
  for kind in READ:
    yield f'{kind}:\n' + textwrap.indent('\n'.join(KINDS[kind]()), '  ')
  others = sorted(kinds().keys() - {*READ})
  yield f'more: fedreid list {"|".join(others)} [WORD]'


def _name(entry: str) -> str:
  return re.split('[:\\s]', entry.strip().lower(), maxsplit=1)[0]


def main(argv: list[str]) -> None:
  """Prints the entries of a kind."""

  def body():
    if not argv[1:]:
      print(errors.folded('\n\n'.join(_short()), indent=' ' * 4))
      return
    kind, *words = argv[1:]
    if kind not in kinds() or len(words) > 1:
      raise errors.ConfigError(
        f'nothing to list: {" ".join(argv[1:])!r}',
        'command line',
        f'fedreid list KIND [WORD]; {errors.one_of(kind, kinds())}',
      )
    word = words[0].lower() if words else ''
    entries = kinds()[kind]()
    # A name means its entry, and not the others that mention it.
    found = [entry for entry in entries if _name(entry) == word]
    found = found or [entry for entry in entries if word in entry.lower()]
    if not found:
      raise errors.ConfigError(
        f'no {kind} with {word!r}', 'command line', f'fedreid list {kind}'
      )
    head = [HEADS[kind]()] if kind in HEADS else []
    print(errors.folded('\n'.join([*head, *found]), indent=' ' * 4))

  run.guarded(argv[:1], body, with_jax=False)
