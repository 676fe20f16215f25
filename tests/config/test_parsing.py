"""Presets, options of recipes, and values as text."""

import pytest

from fedreid_jax import errors
from fedreid_jax.config import parsing, schema

PRESETS = {'synthetic': lambda c: None, 'smoke': lambda c: None}


def read(text):
  given = parsing.argument(
    text, PRESETS, noise=('none', 'single'), space=('f', 'b')
  )
  return (
    given.preset,
    given.options['noise'],
    given.options['space'],
    given.pairs,
  )


@pytest.mark.parametrize(
  'text, found',
  [
    (None, ('synthetic', 'none', 'f', [])),
    ('', ('synthetic', 'none', 'f', [])),
    ('smoke', ('smoke', 'none', 'f', [])),
    ('noise=single', ('synthetic', 'single', 'f', [])),
    ('noise=single,smoke', ('smoke', 'single', 'f', [])),
    ('rounds=3', ('synthetic', 'none', 'f', ['rounds=3'])),
    (
      'smoke,noise.beta=1,space=b,data.targets=("a","b")',
      ('smoke', 'none', 'b', ['noise.beta=1', 'data.targets=("a","b")']),
    ),
  ],
)
def test_arguments_of_a_recipe(text, found):
  assert read(text) == found


@pytest.mark.parametrize(
  'text, message',
  [
    ('papr', "unknown preset 'papr'.*one of synthetic, smoke"),
    ('smoke,noise=double', "unknown noise 'double'.*one of none, single"),
  ],
)
def test_arguments_there_are_not(text, message):
  with pytest.raises(errors.ConfigError, match=message):
    read(text)


@pytest.mark.parametrize(
  'pair, value',
  [
    ('rounds=3', 3),
    ('optim.lr=1', 1.0),
    ('optim.lr=1e-3', 1e-3),
    ('data.invert=True', True),
    ('data.invert=true', True),
    ('data.invert=false', False),
    ('data.root=/a=b', '/a=b'),
    ('data.root=123', '123'),
    ('data.root="x y"', 'x y'),
    ('model.name=resnet18', 'resnet18'),
    ("model.name='resnet18'", 'resnet18'),
    ('data.targets=["a","b"]', ('a', 'b')),
    ('data.targets=()', ()),
    ('optim.points=[[0,1],[2,0.5]]', ((0.0, 1.0), (2.0, 0.5))),
  ],
)
def test_values_as_text(pair, value):
  config = parsing.change(schema.default(), [pair])
  found = parsing.flatten(config)[pair.partition('=')[0]]
  assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
  'pair, message',
  [
    ('rounds', "no field and value 'rounds'"),
    ('rounds=3.5', 'give a whole number'),
    ('rounds=0', 'out of range'),
    ('optim.lr=nan', 'not finite'),
    ('optim.lr=inf', 'not finite'),
    ('optim.lr=fast', 'give a number'),
    ('data.invert=1', 'give a truth value'),
    ('data.targets=a', 'give tuple'),
    ('model.name=resnet9', 'did you mean resnet'),
    ('model.name=vgg', 'one of resnet18'),
    ('optim=1', "unknown field 'optim'"),
    ('optim.learing_rate=1', 'mean optim.lr'),
  ],
)
@pytest.mark.parametrize('where', ['--config', '--set'])
def test_one_set_of_errors(pair, message, where):
  with pytest.raises(errors.ConfigError, match=message):
    parsing.change(schema.default(), [pair], where)
