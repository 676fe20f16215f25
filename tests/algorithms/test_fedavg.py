import handmade
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.algorithms import cdw, fedavg, fedpav, uniform
from fedreid_jax.data import client_split, federation
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.method.sums import Gather

FEDAVG = (fedavg.make(),)
UNIFORM = (fedavg.make(), uniform.make())


def scalars(kernel, scores, mean, **fields):
  """Uploads of clients whose leaves have one value each."""
  each = [
    handmade.variables(*v) for v in zip(kernel, scores, mean, strict=True)
  ]
  shared = {n: jnp.stack([v[n] for v in each]) for n in each[0]}
  return handmade.uploads(shared, **fields)


@pytest.mark.parametrize(
  'components, kernel, scores, mean',
  [(FEDAVG, 7.0, 1.5, 3.0), (UNIFORM, 6.0, 1.0, 2.0)],
  ids=['size', 'uniform'],
)
def test_worked_numbers(components, kernel, scores, mean):
  """Sizes 1 and 3, and every leaf travels, the classifier too."""
  sent = scalars([4, 8], [0, 2], [0, 4], sizes=[1, 3])
  server, log = handmade.serve(components, handmade.variables(9, 9, 9), sent)
  expected = handmade.variables(kernel, scores, mean)
  toy.assert_close_trees(
    {n: x[0] for n, x in server.shared.items()}, expected, 0
  )
  assert not log['fell_back']


@pytest.mark.parametrize('components', [FEDAVG, UNIFORM], ids=['size', 'even'])
def test_equal_clients_come_back(components):
  sent, got, _ = handmade.equal_clients(components)
  toy.assert_close_trees(got, sent, 1e-6)


@pytest.mark.parametrize(
  'component, worth',
  [
    (fedavg.make(), [2, 7, 1, 90]),
    (uniform.make(), [1, 1, 1, 1]),
    (cdw.make(), [0.3, 0.01, 0.5, 1e-4]),
  ],
  ids=lambda x: getattr(x, 'name', ''),
)
def test_weights_of_whoever_arrived_sum_to_one(component, worth):
  server = handmade.variables()
  sent = handmade.same_uploads(
    server, 4, sizes=[2, 7, 1, 90], cdw=[0.3, 0.01, 0.5, 1e-4]
  )
  subsets, rows = handmade.rows_of_subsets(component, sent, server)
  expected = np.where(subsets, worth, 0.0)
  expected /= expected.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(rows, expected, rtol=1e-6)


@pytest.mark.parametrize('raw', [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
@pytest.mark.parametrize('by_leaf', [False, True])
def test_useless_weights_become_sizes_and_the_log_says_so(raw, by_leaf):
  def weights(messages, ctx):
    rows = jnp.where(ctx.members, jnp.array(raw), 0.0)
    return dict.fromkeys(ctx.start, rows) if by_leaf else rows

  broken = Component('broken', aggregation=Gather(weights))
  sent = scalars([4, 8], [0, 2], [0, 4], sizes=[1, 3])
  server, log = handmade.serve((*FEDAVG, broken), handmade.variables(9), sent)
  assert log['fell_back']
  np.testing.assert_allclose(server.shared[handmade.KERNEL], 7.0)
  np.testing.assert_allclose(server.shared[handmade.MEAN], 3.0)


@pytest.mark.slow
def test_order_of_the_domains_changes_no_bit(config):
  """Clients are sorted by name before anything is numbered or drawn."""
  domains = []
  for name, num in toy.SIZES.items():
    client = toy.toy_client(name, num)
    domains.append(
      federation.Images(
        name, client.images, client.labels, client.cameras, client.modalities
      )
    )
  ends = []
  for order in (domains, domains[::-1]):
    clients = client_split.make_clients(
      order, 'by_dataset', 0, 'concat', num_clients=4, concentration=0.5
    )
    executor, variables, _ = toy.make_rounds(config, clients, FEDAVG)
    ends.append(toy.run(executor, variables, 1)[:2])
  toy.assert_equal_trees(*ends)


@pytest.mark.parametrize('labels', ['', 'concat', 'max', 'global'])
def test_one_label_space_is_needed(labels):
  def domain(name, identities):
    column = np.zeros(len(identities), np.int32)
    images = np.zeros((len(identities), 8, 8, 1), np.uint8)
    return federation.Images(
      name, lambda: images, np.array(identities), column, column
    )

  domains = [domain('a', [0, 1]), domain('b', [4, 5, 6])]
  clients = client_split.make_clients(
    domains, 'by_dataset', 0, labels, num_clients=4, concentration=0.5
  )
  check = fedavg.make().bind
  if labels:
    check(Participants(clients, 0, 2))
    return
  with pytest.raises(errors.ConfigError, match='data.labels'):
    check(Participants(clients, 0, 2))
  assert fedpav.make().bind is None
