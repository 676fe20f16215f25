"""The table of options in the docs, and the list in --help."""

import subprocess
import sys
from pathlib import Path

from fedreid_jax.config import reference, schema

ROOT = Path(__file__).parents[2]


def test_docs_are_current():
  found = (ROOT / 'docs' / 'options.md').read_text()
  assert found == reference.markdown(), (
    'run python -m fedreid_jax.config.reference > docs/options.md'
  )


def test_every_field_is_listed():
  text, table = '\n'.join(reference.entries()), reference.markdown()
  for name, field in schema.fields().items():
    assert f'  {name} = {field.default!r} ({field.allowed()})' in text
    assert field.meaning in text
    assert f'| `{name.rpartition(".")[2]}` | `' in table


def test_help_lists_fields():
  done = subprocess.run(
    [sys.executable, '-m', 'launchers.main', '--helpfull'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert 'dfh.lam = 5.0 (float from 0)' in done.stdout
  assert '--config' in done.stdout and not done.stderr
