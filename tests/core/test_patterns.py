"""Patterns are those of `re`, and cannot hold a run up."""

import pytest

from fedreid_jax import errors
from fedreid_jax.config import schema, validation
from fedreid_jax.core import patterns
from fedreid_jax.data.folder import folder_layout

ENDLESS = r'^(a|a)*$'
TEXT = 'a' * 60 + 'b'


def test_lookahead_and_groups():
  shared = patterns.Pattern(schema.default().fedpav.shared, 'x')
  assert shared.match('params/backbone/kernel')
  assert not shared.match('params/head/classifier/kernel')
  camera = patterns.Pattern(r'_(\d+)\.[^.]+$', 'x')
  assert camera.groups == 1
  assert camera.search('p1/x_07.png').group(1) == '07'
  assert camera.match('p1/x_07.png') is None


def test_backtracking_is_stopped(monkeypatch):
  monkeypatch.setattr(patterns, 'LIMIT_S', 0.1)
  with pytest.raises(errors.ConfigError) as info:
    patterns.Pattern(ENDLESS, 'data.camera_pattern').search(TEXT)
  assert info.value.where == 'data.camera_pattern'
  assert ENDLESS in info.value.what and TEXT in info.value.what


def test_time_of_other_threads_does_not_count(monkeypatch):
  """The engine stops a match at the processor time of the whole process."""
  slow = patterns.Pattern('a', 'x')
  calls = []

  class Engine:
    pattern = 'a'

    def search(self, text, timeout):
      calls.append(timeout)
      if len(calls) < 3:
        raise TimeoutError
      return text

  monkeypatch.setattr(slow, '_compiled', Engine())
  assert slow.search('a') == 'a'
  assert calls == sorted(calls) and len(calls) == 3


def test_the_limit_is_on_all_texts_together(monkeypatch):
  monkeypatch.setattr(patterns, 'LIMIT_S', 0.1)
  slow = patterns.Pattern(ENDLESS, 'x')
  with pytest.raises(errors.ConfigError, match='takes more than'):
    for _ in range(100_000):
      slow.search(TEXT[-18:])


def test_a_folder_names_the_field(tmp_path, monkeypatch):
  monkeypatch.setattr(patterns, 'LIMIT_S', 0.1)
  image = tmp_path / 'east' / 'p1' / f'{TEXT}.png'
  image.parent.mkdir(parents=True)
  image.touch()
  chosen = folder_layout.Patterns(camera_pattern=r'/(a|a)*$')
  with pytest.raises(errors.ConfigError) as info:
    folder_layout.find(tmp_path, chosen, False).read('east')
  assert info.value.where == 'data.camera_pattern'


def test_what_is_no_pattern_is_refused():
  config = schema.default()
  config.data.camera_pattern = '('
  with pytest.raises(errors.ConfigError) as info:
    validation.validate(config)
  assert info.value.where == 'data.camera_pattern'
