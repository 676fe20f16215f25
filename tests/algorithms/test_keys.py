"""Random keys of the server, and that no key is used twice in a round."""

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import prng, types
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  DataPass,
  ServerHooks,
)
from fedreid_jax.method.sums import Gather
from fedreid_jax.round import compose, local_step


@pytest.mark.slow
def test_server_keys_before_and_in_round_0_differ():
  """The keys of all hooks of two components; those of one are the same."""
  found = {}

  def keep(hook, name, ctx):
    found[hook, name] = np.asarray(jax.random.key_data(ctx.key)).tolist()

  def probe(name, **owned):
    def init(ctx):
      keep('init', name, ctx)
      return ()

    def update(state, models, ctx):
      keep('update', name, ctx)
      return state, models

    return Component(name, server=ServerHooks(init, update=update), **owned)

  def clustering(groups, ctx):
    keep('clustering', 'a', ctx)
    return groups[jnp.maximum(ctx.index, 0)]

  def weights(messages, ctx):
    keep('aggregation', 'b', ctx)
    return ctx.members / jnp.maximum(ctx.members.sum(), 1)

  components = (
    probe('a', shared='.*', clustering=clustering),
    probe('b', aggregation=Gather(weights)),
  )
  made = handmade.algorithm(components)
  public = jnp.zeros((0, 1, 1, 3), jnp.uint8)
  seed = prng.data(0)
  state = made.init_server(handmade.variables(), jnp.ones(2), public, seed)
  sent = handmade.same_uploads(handmade.variables(), 2)
  made.aggregate(state, sent, jnp.arange(2), jnp.int32(0), public, seed)
  before = [key for (hook, _), key in found.items() if hook == 'init']
  after = [key for (hook, _), key in found.items() if hook != 'init']
  assert (len(before), len(after)) == (2, 4)
  assert all(key not in after for key in before)
  assert found['clustering', 'a'] == found['update', 'a']
  assert found['update', 'a'] != found['update', 'b']
  assert found['init', 'a'] != found['init', 'b']


def test_client_keys_before_and_in_round_0_differ():
  """Both passes have the round 0; the same noise in both would cancel."""

  def send(state, ctx):
    return state, jax.random.key_data(ctx.key)

  passing = DataPass(lambda *_: (), lambda seen, *_: seen)
  probe = Component(
    'probe',
    '.*',
    client=ClientHooks(data_pass=passing, round_end=send),
    properties=('before_first_round',),
  )
  end = handmade.algorithm((probe,)).program.end
  variables = handmade.variables()
  broadcast = types.Broadcast(variables, {}, jnp.int32(0), jnp.int32(0))
  kept = types.ClientState({}, {'probe': ()}, ())
  carry = local_step.Carry(variables, {}, (), {'probe': ()}, {}, {}, ())
  keys = [
    end(broadcast, kept, carry, handmade.task(), trained)[0].messages['probe']
    for trained in (False, True)
  ]
  assert (np.asarray(keys[0]) != np.asarray(keys[1])).any()


def test_a_key_that_is_used_twice_is_noticed():
  def twice(key):
    return jax.random.normal(key) + jax.random.uniform(key)

  with jax.debug_key_reuse(True):
    with pytest.raises(jax.errors.KeyReuseError):
      jax.jit(twice)(jax.random.key(0))


@pytest.mark.slow
def test_a_round_uses_no_key_twice(config, clients):
  config = toy.replaced(
    config,
    {
      'model.dropout': 0.5,
      'execution.deterministic': False,
      'execution.width': 0,
    },
  )
  with jax.debug_key_reuse(True):
    executor, variables, _ = toy.make_rounds(
      config, clients, compose.load(('fedpav', 'dfh'), {}, algorithms)
    )
    _, _, logs = toy.run(executor, variables, 1)
  assert all(logs[0]['valid'])
