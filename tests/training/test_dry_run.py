"""The lines of `fedreid train --dry_run`."""

import re

import pytest
import toy

from fedreid_jax.training import build
from fedreid_jax.training.reports import dry_run


@pytest.fixture
def lines(config, clients, monkeypatch, tmp_path):
  built = toy.toy_federation(clients)._replace(notices=('on a guess',))
  monkeypatch.setattr(build.load, 'load', lambda *_, **__: built)
  config = toy.replaced(config, {'optim.lr': 0.0125, 'track': ('csv',)})
  found = list(dry_run.lines(config, tmp_path / 'run'))
  assert not (tmp_path / 'run').exists()
  return '\n'.join(found)


def test_what_a_run_does_and_needs(lines, clients):
  assert '  optim.lr = 0.0125' in lines and 'optim.gamma' not in lines
  for client in clients:
    assert f'  {client.name}: {client.num_images} images' in lines
  assert 'test on target: 24 images' in lines
  assert '\nnote: on a guess\n' in lines
  for pattern in (
    r'network: \d[\d,]* parameters, \d+\.\d million multiply-adds',
    r'a round sends \d[\d.]* k?B up \(\d[\d.]* k?B model\)',
    r'uploads: 4 of 0\.\d+ MB are added to fixed-point sums',
    r'a round trains \d+ steps of \d+ images',
    r'XLA counts \d[\d.]* billion in one step of a client',
    r'a device needs \d[\d.]* [kM]B of \d',
    r'a run would write \S+run: config.json, .*results.json, metrics.csv, '
    r'and checkpoints of \d[\d.]* k?B, of which the last 2 and the best are',
  ):
    assert re.search(pattern, lines), pattern


@pytest.mark.parametrize(
  'number, text',
  [
    *((0, '0 B'), (999, '999 B'), (1000, '1 kB'), (1500, '1.5 kB')),
    *((999_700, '1 MB'), (2.5e9, '2.5 GB'), (2e12, '2 TB')),
  ],
)
def test_sizes(number, text):
  assert dry_run._size(number) == text
