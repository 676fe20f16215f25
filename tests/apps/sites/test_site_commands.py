"""`fedreid site` and `fedreid coordinate` where something is missing."""

import importlib
import sys

import commands
import pytest

from fedreid_jax import errors


def test_a_missing_package_is_one_line_with_the_extra(monkeypatch):
  module = 'fedreid_jax.apps.sites.flower_apps'
  monkeypatch.delitem(sys.modules, module, raising=False)
  monkeypatch.setitem(sys.modules, 'flwr', None)
  with pytest.raises(errors.ConfigError) as info:
    importlib.import_module(module)
  assert info.value.line().startswith('error[2]: no flwr: ')
  assert "pip install 'fedreid_jax[sites]'" in info.value.line()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('words', 'text'),
  [
    (('site', 'dfh:smoke'), 'no socket'),
    (
      ('coordinate', 'dfh:smoke,start_from=runs/other', '--sites=3'),
      'a warm start at real sites',
    ),
  ],
)
def test_a_wrong_command_is_one_line(words, text, tmp_path):
  code, _, told = commands.launch_program(*words, f'--workdir={tmp_path}/run')
  assert code == 2 and text in told and len(told.splitlines()) == 1
  assert not (tmp_path / 'run').exists()
