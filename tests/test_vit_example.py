"""`examples/vit_clip.sh`: one command with weights of CLIP, or without."""

import functools
import json
from pathlib import Path

import commands
import photo_trees
import pytest

SCRIPT = Path(__file__).parents[1] / 'examples' / 'vit_clip.sh'
# Writes each argument in a line.
RECORDER = '#!/usr/bin/env bash\nprintf "%s\\n" "$@" >> "$CALLS"\n'


@pytest.fixture
def script(tmp_path):
  """`(*arguments, program, **variables)` runs the script."""
  return functools.partial(commands.launch_script, SCRIPT, tmp_path)


def test_with_weights_few_parameters_are_trained(script, tmp_path):
  calls = tmp_path / 'calls'
  code, _, err = script(
    'photos',
    tmp_path / 'work',
    'rounds=3',
    program=RECORDER,
    CALLS=calls,
    WEIGHTS='clip.pth',
  )
  assert code == 0, err
  lines = calls.read_text().splitlines()
  imported = f'{tmp_path}/work/clip.safetensors'
  assert lines[:3] == ['import-weights', 'clip.pth', f'--out={imported}']
  assert {
    f'--config.model.pretrained={imported}',
    '--config.model.tune=lora',
    '--config.rounds=3',
  } <= {*lines}


def test_usage(script, tmp_path):
  code, _, err = script(tmp_path, program=RECORDER)
  assert code == 2 and err.startswith('usage: WEIGHTS=')


@pytest.mark.slow
def test_without_weights_a_small_transformer_is_trained(script, tmp_path):
  photo_trees.domains(tmp_path / 'photos')
  work = tmp_path / 'work'
  code, out, err = script(
    tmp_path / 'photos',
    work,
    *('vit.size=tiny', 'vit.stride=8', 'data.height=32', 'data.width=16'),
    *('rounds=1', 'evaluation.every=1', 'evaluation.validation=0'),
    *('local.steps=1', 'local.batch=8', 'local.identities=4'),
  )
  assert code == 0, out + err
  assert 'without WEIGHTS' in out
  results = json.loads((work / 'run' / 'results.json').read_text())
  assert results['rounds'] == 1
