"""Figures of the papers in claims are those of the papers' tables."""

import re

import numpy as np
import pytest

from fedreid_jax.apps.papers.tables import (
  dfh,
  fedreid,
  fedreidbench,
  fedreidbench_journal,
  l2rw,
)
from fedreid_jax.apps.papers.tables.index import CLAIMS

TABLES = {
  'DFH': (dfh,),
  'L2RW': (l2rw,),
  'Wu and Gong': (fedreid,),
  'FedReIDBench': (fedreidbench, fedreidbench_journal),
}


def published(modules):
  """Returns all numbers that tables of papers print, as they are rounded."""
  found = set()
  for table in (table for module in modules for table in module.TABLES):
    found |= {*re.findall(r'\d+\.\d+', table.note)}
    for row in table.rows:
      for scores in row.published.values():
        found |= {f'{x:g}' for x in map(abs, scores.values()) if x == x}
  return {float(x) for x in found}


def paper(claim):
  return next((p for p in TABLES if claim.source.startswith(p)), '')


@pytest.mark.parametrize(
  'claim',
  [c for c in CLAIMS.values() if paper(c) and paper(c) != 'FedReIDBench'],
  ids=lambda claim: claim.name,
)
def test_figures_are_those_of_the_tables(claim):
  numbers = {float(x) for x in re.findall(r'\d+\.\d+', claim.published)}
  # A DFH route's number may be that of the table of another one.
  assert numbers <= published(TABLES[paper(claim)])
  assert numbers or 'figure' in claim.published


def means(*names):
  """Returns mean rank-1 of the journal's table 3, or of rows of table 4."""
  rows = fedreidbench_journal.TABLE3 | fedreidbench_journal.TABLE4
  return [np.mean([*rows[name].values()]) for name in names]


@pytest.mark.parametrize(
  'claim, rows',
  [
    ('local', ('Local', 'Global')),
    ('upper_bound', ('Centralized', 'Global')),
    ('cdw', ('CDW', 'Benchmark')),
    ('fedprox', ('FedProx', 'Benchmark')),
    ('fednova', ('FedNova', 'Benchmark')),
    ('local_or_alone', ('CDW',)),
  ],
)
def test_means_are_those_of_nine_data_sets(claim, rows):
  text = CLAIMS[claim].published
  found = [float(x) for x in re.findall(r'[+-]?\d+\.\d', text)]
  assert found == pytest.approx(means(*rows), abs=0.05)


def test_means_of_large_and_small_data_sets():
  """The papers' five large data sets are the first five."""

  def parts(name):
    scores = [*fedreidbench_journal.TABLE4[name].values()]
    return [np.mean(scores[:5]), np.mean(scores[5:])]

  def numbers(name):
    found = re.findall(r'[+-]\d+\.\d', CLAIMS[name].published)
    return [float(x) for x in found]

  large, small = parts('Benchmark')
  assert numbers('small_clients') == pytest.approx([small, large], abs=0.05)
  clusters = parts('CC')
  assert numbers('groups') == pytest.approx(
    [clusters[0], large, clusters[1], small], abs=0.05
  )
