"""`examples/vit_clip.sh`: one command with weights of CLIP, or without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import commands
import photo_trees
import pytest

SCRIPT = Path(__file__).parents[1] / 'examples' / 'vit_clip.sh'
FEDREID = f"""#!/usr/bin/env bash
exec {sys.executable} -m fedreid_jax.cli.program "$@"
"""
# Writes each argument in a line.
RECORDER = '#!/usr/bin/env bash\nprintf "%s\\n" "$@" >> "$CALLS"\n'


@pytest.fixture
def script(tmp_path):
  """`(*arguments, program, **variables)` runs the script."""

  def run(*arguments, program, **variables):
    path = tmp_path / 'bin' / 'fedreid'
    path.parent.mkdir(exist_ok=True)
    path.write_text(program)
    path.chmod(0o755)
    env = commands.environment() | {
      'PATH': f'{path.parent}:{os.environ["PATH"]}',
      'PYTHONPATH': str(SCRIPT.parents[1]),
    }
    return subprocess.run(
      ['bash', SCRIPT, *map(str, arguments)],
      env=env | {name: str(value) for name, value in variables.items()},
      capture_output=True,
      text=True,
      timeout=600,
      check=False,
    )

  return run


def test_with_weights_few_parameters_are_trained(script, tmp_path):
  calls = tmp_path / 'calls'
  found = script(
    'photos',
    tmp_path / 'work',
    'rounds=3',
    program=RECORDER,
    CALLS=calls,
    WEIGHTS='clip.pth',
  )
  assert found.returncode == 0, found.stderr
  lines = calls.read_text().splitlines()
  imported = f'{tmp_path}/work/clip.safetensors'
  assert lines[:3] == ['import-weights', 'clip.pth', f'--out={imported}']
  assert {
    f'--config.model.pretrained={imported}',
    '--config.model.tune=lora',
    '--config.rounds=3',
  } <= {*lines}


def test_usage(script, tmp_path):
  found = script(tmp_path, program=RECORDER)
  assert found.returncode == 2 and found.stderr.startswith('usage: WEIGHTS=')


@pytest.mark.slow
def test_without_weights_a_small_transformer_is_trained(script, tmp_path):
  photo_trees.domains(tmp_path / 'photos', people=12)
  work = tmp_path / 'work'
  found = script(
    tmp_path / 'photos',
    work,
    *('vit.size=tiny', 'vit.stride=8', 'data.height=32', 'data.width=16'),
    *('rounds=1', 'evaluation.every=1', 'evaluation.validation=0'),
    program=FEDREID,
  )
  assert found.returncode == 0, found.stdout + found.stderr
  assert 'without WEIGHTS' in found.stdout
  results = json.loads((work / 'run' / 'results.json').read_text())
  assert results['rounds'] == 1
