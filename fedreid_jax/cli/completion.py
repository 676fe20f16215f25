"""Print a script that completes words of a shell: `fedreid completion SHELL`.

  source <(fedreid completion bash)                  # in ~/.bashrc
  source <(fedreid completion zsh)                   # in ~/.zshrc
  fedreid completion bash > /etc/bash_completion.d/fedreid

The script completes commands, recipes, presets, flags, fields and kinds of
`fedreid list`. It contains the words of the installed version: print it again
after an upgrade.
"""

import ast
import shlex

from fedreid_jax import errors
from fedreid_jax.cli import list as listing
from fedreid_jax.cli import program, run
from fedreid_jax.config import recipes, schema

SHELLS = ('bash', 'zsh')

# Bash separates words at a colon, so a preset is the word after `:`.
_SCRIPT = """_fedreid() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=
  local command=${{COMP_WORDS[1]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    words={commands}
  elif [[ $before == : || $current == : ]]; then
    current=${{current#:}}
    words={presets}
  else
    case $command in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *= ]]; then
    compopt -o nospace 2> /dev/null
  fi
}}
complete -o default -F _fedreid fedreid
"""
_ZSH = 'autoload -U +X bashcompinit && bashcompinit\n'


def flags_of(module: str) -> list[str]:
  """Returns the flags that a module defines or adopts, as `--NAME[=]`."""
  # From the source, because the modules of two commands cannot be imported
  # together: some of their flags have the same names.
  tree = program.syntax(module)
  imported = {
    alias.name: f'{node.module}.{alias.name}'
    for node in tree.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
  }
  found = []
  # Functions define no flag of their own module.
  top = [n for n in tree.body if not isinstance(n, ast.FunctionDef)]
  calls = [n for one in top for n in ast.walk(one) if isinstance(n, ast.Call)]
  for node in calls:
    name = getattr(node.func, 'attr', '')
    # `run.define_NAME()` defines the flag NAME.
    if name.startswith('define_'):
      found.append(f'--{name.removeprefix("define_")}=')
    if not node.args:
      continue
    first = node.args[0]
    if name == 'adopt_module_key_flags' and isinstance(first, ast.Name):
      found += flags_of(imported[first.id])
    # The name of the flag is the first argument of the class of the flag.
    if name == 'DEFINE_flag' and isinstance(first, ast.Call):
      first = first.args[0]
    if name.startswith('DEFINE_') and isinstance(first, ast.Constant):
      sign = '' if name == 'DEFINE_bool' else '='
      found.append(f'--{first.value}{sign}')
  return found


def first_words() -> dict[str, list[str]]:
  """Returns, by command, the words one of which comes first."""
  return {
    'list': [*listing.kinds()],
    'completion': [*SHELLS],
    'data': ['prepare', 'doctor', 'synth', 'sheet', 'list'],
    'privacy': ['plan'],
  }


def script(shell: str) -> str:
  """Returns the script for a shell, 'bash' or 'zsh'."""
  common = [*flags_of(run.__name__), '--help']
  fields = [f'--config.{name}=' for name in schema.fields()]
  first = first_words()
  cases = []
  for command, module in program.commands().items():
    words = [*first.get(command, ()), *flags_of(module), *common]
    if program.takes_recipe(module):
      words += [*recipes.names(), *fields]
    cases.append(f'      {command}) words={shlex.quote(" ".join(words))} ;;')
  presets = {
    name for one in recipes.names() for name in recipes.choices(one)[0]
  }
  text = _SCRIPT.format(
    commands=shlex.quote(' '.join(program.commands())),
    presets=shlex.quote(' '.join(sorted(presets))),
    cases='\n'.join(cases),
  )
  return _ZSH + text if shell == 'zsh' else text


def main(argv: list[str]) -> None:
  """Prints the script."""

  def body():
    shell = ' '.join(argv[1:])
    if shell not in SHELLS:
      raise errors.ConfigError(
        f'no script for {shell!r}', 'command line', errors.one_of(shell, SHELLS)
      )
    print(script(shell), end='')

  run.guarded(argv[:1], body, with_jax=False)
