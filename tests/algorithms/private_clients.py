"""Clients whose identities DP-SGD protects."""

import toy

from fedreid_jax.algorithms import dpsgd
from fedreid_jax.method.component import Participants


def participants(clients=None, rounds=1, **fields):
  given = {'sampler': 'poisson_pk', 'batch': 6, 'identities': 3, 'steps': 2}
  clients = clients or toy.toy_clients()
  fields = given | fields
  return Participants(clients, 0, len(clients), rounds=rounds, **fields)


def bound(people=None, **options):
  made = dpsgd.make(dpsgd.Options(**options))
  assert made.bind
  return made.bind(people or participants())
