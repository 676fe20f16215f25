import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.algorithms import byzantine, fedpav
from fedreid_jax.core import types
from fedreid_jax.losses import identity
from fedreid_jax.method.component import Participants
from fedreid_jax.training import contract

KERNEL, HEAD, MEAN = handmade.KERNEL, handmade.HEAD, handmade.MEAN
CLIENTS = contract.toy_clients()


def bound(people=CLIENTS, **options):
  made = byzantine.make(byzantine.Options(**options))
  assert made.bind
  return made.bind(Participants(people, 0, len(people)))


def one_round(config, *components):
  """The uploads of a toy round, and its server."""
  executor, variables, _ = toy.make_rounds(
    config, CLIENTS, (fedpav.make(), *components)
  )
  server, _, logs = toy.run(executor, variables, 1)
  return {n: x[0] for n, x in server.shared.items()}, variables, logs[0]


@pytest.mark.slow
def test_attackers_of_a_run_send_a_multiple_of_their_update(config):
  """All attack: the mean of the updates is multiplied like each of them."""
  every = tuple(client.name for client in CLIENTS)
  honest, start, _ = one_round(config)
  options = byzantine.Options(kind='scale', clients=every, scale=2.5)
  found, _, log = one_round(config, byzantine.make(options))
  assert log['valid'].all()
  for name, x in found.items():
    by = 2.5 if name.startswith('params') else 1.0
    moved = np.asarray(honest[name]) - start[name]
    np.testing.assert_allclose(x, start[name] + by * moved, atol=1e-6)


def upload(index, value=3.0):
  shared = {KERNEL: jnp.full((3, 2), value), MEAN: jnp.full(2, value)}
  sent = handmade.uploads({n: x[None] for n, x in shared.items()})
  return jax.tree.map(lambda x: x[0], sent).replace(index=jnp.int32(index))


def send(component, index, value=3.0, seed=0):
  received = handmade.context(
    byzantine.Broadcast, shared={KERNEL: jnp.ones((3, 2)), MEAN: jnp.ones(2)}
  )
  assert component.transport and component.transport.up
  _, found = component.transport.up(
    (), upload(index, value), received, jax.random.key(seed)
  )
  return {name: np.asarray(x) for name, x in found.shared.items()}


def trained(labels, scores):
  """(shared parameters, classifier) after three steps of a FedPav client."""
  steps = np.arange(6).reshape(3, 2)
  task = handmade.task(num_steps=3, rows=steps, valid=np.ones((3, 2), bool))
  return _trained(task, labels, scores)


@jax.jit
def _trained(task, labels, scores):
  def objective(outputs, batch):
    loss = identity.cross_entropy(outputs.logits, batch.labels, batch.valid)
    return loss, {}

  program = handmade.algorithm((fedpav.make(),), objective=objective).program
  rng = np.random.default_rng(0)
  start = handmade.variables(kernel=rng.standard_normal((3, 2)))
  del start[HEAD]
  broadcast = types.Broadcast(start, {}, jnp.int32(0), jnp.int32(0))
  zeros = jnp.zeros(6, jnp.int32)
  images = jnp.asarray(handmade.pixels(rng.integers(0, 30, (6, 3))))
  table = types.Table(images, labels, zeros, zeros)
  state = types.ClientState({HEAD: scores}, {}, ())
  carry = program.begin(broadcast, state, task)
  carry, _ = program.train(broadcast, table, carry, task)
  upload, kept = program.end(broadcast, state, carry, task)
  return upload.shared, kept.personal[HEAD]


def test_renamed_identities_are_no_attack_on_a_personal_classifier():
  """Labels and columns of the classifier that are permuted alike."""
  labels, new = np.array([0, 1, 2, 2, 0, 1]), np.array([2, 0, 1])
  scores = np.random.default_rng(1).standard_normal((2, 3)).astype('f4')
  renamed = scores[:, np.argsort(new)]
  honest, own = trained(labels, scores)
  sent, columns = trained(new[labels], renamed)
  assert sent.keys() == {KERNEL, MEAN}
  toy.assert_close_trees(sent, honest, 1e-6)
  np.testing.assert_allclose(columns[:, new], own, atol=1e-6)
  assert np.abs(own - scores).max() > 0.01
  # Labels that are wrong change what the client sends.
  for wrong in (new[labels], labels[[1, 0, 2, 4, 3, 5]]):
    changed, _ = trained(wrong, scores)
    assert np.abs(changed[KERNEL] - honest[KERNEL]).max() > 0.01


def test_the_sign_twice_is_the_honest_upload():
  attack = bound(kind='sign', clients=('birch',))
  once = send(attack, 1)[KERNEL]
  np.testing.assert_array_equal(once, np.full((3, 2), -1.0))
  np.testing.assert_array_equal(send(attack, 1, once[0, 0])[KERNEL], 3.0)


@pytest.mark.parametrize('kind', ('sign', 'scale', 'gaussian', 'zero'))
def test_only_attackers_and_only_parameters_change(kind):
  attack = bound(kind=kind, clients=('birch',))
  for index in (0, 2, 3):
    np.testing.assert_array_equal(send(attack, index)[KERNEL], 3.0)
  found = send(attack, 1)
  assert (found[KERNEL] != 3.0).all()
  np.testing.assert_array_equal(found[MEAN], 3.0)
  assert 'birch' in attack.notice


def test_model_replacement_makes_the_mean_the_attackers_model():
  attack = bound(kind='scale', clients=('birch', 'cedar'))
  sizes = np.array([client.num_images for client in CLIENTS])
  sent = [send(attack, k, 1.0 if k in (0, 3) else 3.0)[KERNEL][0, 0]
          for k in range(4)]  # fmt: skip
  assert np.average(sent, weights=sizes) == pytest.approx(3.0)


def test_noise_has_the_size_of_the_update():
  shared, start = (
    {'params/a': jnp.full(40000, 0.5)},
    {'params/a': jnp.zeros(40000)},
  )
  found = byzantine.attack('gaussian', 10.0, shared, start, jax.random.key(0))
  assert np.std(found['params/a']) == pytest.approx(5.0, rel=0.02)
  assert abs(np.mean(found['params/a'])) < 0.1
  again = byzantine.attack('gaussian', 10.0, shared, start, jax.random.key(1))
  assert (found['params/a'] != again['params/a']).all()


@pytest.mark.parametrize(
  'num, wrong, z', [(9, 2, 0.180), (9, 4, 0.842), (50, 24, 1.426)]
)
def test_z_of_alie(num, wrong, z):
  found = byzantine.largest_deviation(jnp.int32(num), jnp.int32(wrong))
  assert float(found) == pytest.approx(z, abs=5e-4)


def test_alie_sends_the_mean_less_z_deviations_from_all_attackers():
  rng = np.random.default_rng(0)
  people = tuple(contract.toy_client(name, 4) for name in 'abcdefghi')
  values = {
    KERNEL: rng.standard_normal((9, 3, 2)).astype('f4'),
    MEAN: rng.standard_normal((9, 2)).astype('f4'),
  }
  values[KERNEL][8] = np.nan  # an honest one that diverged
  attack = bound(people, kind='alie', clients=('b', 'e', 'h'))
  assert attack.transport and attack.transport.collude
  found = attack.transport.collude(handmade.uploads(values)).shared
  wrong = [1, 4, 7]
  own = values[KERNEL][wrong].astype('f8')
  z = float(byzantine.largest_deviation(jnp.int32(8), jnp.int32(3)))
  for k in wrong:
    np.testing.assert_allclose(
      found[KERNEL][k], own.mean(0) - z * own.std(0), rtol=1e-5, atol=1e-6
    )
  rest = np.array([k for k in range(9) if k not in wrong])
  np.testing.assert_array_equal(found[KERNEL][rest], values[KERNEL][rest])
  np.testing.assert_array_equal(found[MEAN], values[MEAN])


def test_alie_reaches_the_server():
  attack = bound(kind='alie', clients=('ash', 'birch'), scale=3.0)
  sent = handmade.uploads(
    {
      KERNEL: jnp.arange(4.0)[:, None, None] * jnp.ones((4, 3, 2)),
      MEAN: jnp.zeros((4, 2)),
    }
  )
  state, _ = handmade.serve((fedpav.make(), attack), handmade.variables(), sent)
  # 0 and 1 become 0.5 - 3 * 0.5.
  np.testing.assert_allclose(state.shared[KERNEL], (-1 - 1 + 2 + 3) / 4)


def test_a_share_chooses_by_name_whatever_the_others_are():
  names = [client.name for client in CLIENTS]
  one = byzantine.attackers(byzantine.Options(share=0.25), names)
  two = byzantine.attackers(byzantine.Options(share=0.499), names)
  assert len(one) == 1 == len(two) and one == two
  many = [f'c{k}' for k in range(20)]
  more = byzantine.attackers(byzantine.Options(share=0.2), many)
  assert len(more) == 4
  fewer = [name for name in many if name != more[0]]
  assert {*more[1:]} <= {
    *byzantine.attackers(byzantine.Options(share=0.25), fewer)
  }


@pytest.mark.parametrize(
  'options, message',
  [
    ({'clients': ('brich',)}, "no client 'brich'.*did you mean birch"),
    ({'share': 0.2}, '0.2 of 4 clients is less than one'),
  ],
)
def test_attackers_that_do_not_exist(options, message):
  with pytest.raises(errors.ConfigError, match=message):
    bound(**options)
