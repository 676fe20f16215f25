"""No default, range or choice of a field is written twice."""

import ast
import importlib
import inspect
from collections import Counter
from pathlib import Path

import pytest

import fedreid_jax
from fedreid_jax import algorithms
from fedreid_jax.config import schema
from fedreid_jax.core import options, plugins
from fedreid_jax.data import augment, client_split, protocols, sampling
from fedreid_jax.models import backbones, dns, networks, reid, resnet
from fedreid_jax.training import trackers

PACKAGE = Path(str(fedreid_jax.__file__)).parent
FILES = [
  path
  for folder in (PACKAGE, PACKAGE.parent / 'configs')
  for path in sorted(folder.rglob('*.py'))
]
FIELDS = schema.fields()
CHOICES = {frozenset(f.choices()) for f in FIELDS.values() if f.choices()}
LITERALS, LISTS = Counter(), []


def strings(node):
  """Returns the strings of a display of nothing else."""
  if not isinstance(node, ast.Tuple | ast.List | ast.Set):
    return frozenset()
  values = [e.value for e in node.elts if isinstance(e, ast.Constant)]
  alone = len(values) == len(node.elts) > 1
  return frozenset(values) if alone else frozenset()


def look():
  for path in FILES:
    tree = ast.parse(path.read_text())
    inside = set()
    for node in ast.walk(tree):
      if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        if node.value.id == 'Literal':
          inside.add(node.slice)
          LITERALS[strings(node.slice)] += 1
    for node in ast.walk(tree):
      if node not in inside and strings(node) in CHOICES:
        LISTS.append(f'{path.name}:{node.lineno}: {ast.unparse(node)}')


look()


def test_choices_are_in_one_literal_each():
  twice = {choices for choices in CHOICES if LITERALS[choices] > 1}
  assert not twice


def test_no_other_list_has_the_choices_of_a_field():
  assert not LISTS


@pytest.mark.parametrize(
  'field, table',
  [
    ('augment.channel_kinds', augment.KINDS),
    ('augment.infrared', augment.INFRARED),
    ('data.client_split', client_split.CLIENT_SPLITS),
    ('dns.variant', dns.DOMAINS),
    ('evaluation.protocol', ['', *protocols.PROTOCOLS]),
    ('local.sampler', sampling.SAMPLERS),
    ('model.dtype', ['auto', *networks.DTYPES]),
    (
      'model.name',
      [*resnet.DEPTHS, 'convnet', *plugins.available(backbones)],
    ),
    ('model.pool', reid.POOLS),
    ('track', trackers.KINDS),
  ],
)
def test_tables_have_an_entry_for_every_choice(field, table):
  assert {*FIELDS[field].choices()} == {*table}


@pytest.mark.parametrize('name', plugins.available(algorithms))
def test_components_take_nothing_but_their_options(name):
  module = importlib.import_module(f'fedreid_jax.algorithms.{name}')
  parameters = inspect.signature(module.make).parameters
  if hasattr(module, 'Options'):
    assert issubclass(module.Options, options.Checked)
    assert list(parameters) == ['options']
    assert parameters['options'].default == module.Options()
    assert parameters['options'].annotation is module.Options
  else:
    assert not parameters
