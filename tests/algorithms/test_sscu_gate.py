"""SSCU: the memory that a client keeps, and the gate of its updates."""

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms import dacs, sscu
from fedreid_jax.config import recipes, validation
from fedreid_jax.core import trees
from fedreid_jax.method import optimizers
from fedreid_jax.method.contexts import RoundCtx, RoundEndCtx
from fedreid_jax.round import compose
from fedreid_jax.training import loop
from fedreid_jax.training.files import checkpoint

ROWS = jnp.array([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]])
STYLES = dacs.Kept(
  {handmade.KERNEL: jnp.ones((4, 2)), handmade.MEAN: jnp.zeros(2)},
  {dacs.SCALE: jnp.ones((2, 2, 1)), dacs.SHIFT: jnp.zeros((2, 2, 1))},
)


def ended(round_, gate, trained=True, features=None):
  """What a client keeps of a round whose copy is twice its memory."""
  client = sscu.make(sscu.Options(every=2, gate=gate)).client
  styles = dacs.Training(STYLES, (), ())
  ctx = handmade.context(
    RoundEndCtx, round=jnp.int32(round_), trained=trained, data_pass=features
  )
  kept, message = client.round_end(sscu.Training(styles, ROWS, 2 * ROWS), ctx)
  assert message == ()
  return kept


def test_the_memory_begins_with_mean_features():
  class Features:
    mean = jnp.array([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]])

  for gate in ('always', 'validation'):
    kept = ended(0, gate, False, Features)
    np.testing.assert_allclose(
      kept.memory, [[0.6, 0.8], [0, 0], [0, 1]], rtol=1e-6
    )
    assert gate == 'always' or kept.pending.judgement == sscu.NONE


def test_a_gate_that_is_always_open():
  for round_, factor in enumerate([1, 2, 1, 2]):
    kept = ended(round_, 'always')
    np.testing.assert_array_equal(kept.memory, factor * ROWS)
    assert kept.pending == ()


def started(kept, judged):
  client = sscu.make(sscu.Options(every=2, gate='validation')).client
  ctx = handmade.context(
    RoundCtx,
    message=sscu._verdicts(judged),
    optimizer=optimizers.sgd(0.9, False, 0.0),
  )
  return client.round_start(kept, ctx).memory


def judged(*scores, every=2, between=50.0):
  """The server after evaluations with these mAPs, one each `every` rounds."""
  server = sscu.make(sscu.Options(every=every, gate='validation')).server
  state = server.init(None)
  for number, score in enumerate(scores):
    for done in range(number * every, (number + 1) * every):
      value = between if done % every else score
      state = server.judge(state, {'mAP': jnp.float32(value)}, jnp.int32(done))
  return state


def test_the_server_judges_by_the_result_before():
  state = judged(10.0, 12.0, 11.0, 11.0)
  # Of equal results the later is no worse; those between do not count.
  assert state.accepted[:4].tolist() == [True, False, True, True]
  assert state.last == 3 and state.score == 11
  assert state.accepted.shape == (sscu.HISTORY,)


@pytest.mark.parametrize(
  'round_, scores, factor',
  [
    (1, (10.0, 12.0), 2),  # judgement 1 follows round 1
    (1, (10.0, 9.0), 1),
    (3, (10.0, 9.0, 9.5), 2),
    (3, (10.0, 12.0, 11.0), 1),
    (2, (10.0, 12.0), 1),  # no round to be judged
    (1, (10.0, 12.0, 11.0, 5.0), 2),  # away for two judgements
    (1, (10.0,), 1),  # judgement 1 has not been made
  ],
)
def test_a_client_learns_the_judgement_when_it_trains_again(
  round_, scores, factor
):
  memory_ = started(ended(round_, 'validation'), judged(*scores))
  np.testing.assert_array_equal(memory_, factor * ROWS)


def test_an_old_judgement_is_forgotten():
  kept = ended(1, 'validation')
  for later, factor in ((sscu.HISTORY - 1, 2), (sscu.HISTORY, 1)):
    state = judged(10.0, 12.0, *[1.0] * later)
    np.testing.assert_array_equal(started(kept, state), factor * ROWS)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'loss.identity': 1.0}, 'loss.identity'),
    ({'sscu.gate': 'validation'}, 'evaluation.validation'),
    (
      {
        'sscu.gate': 'validation',
        'evaluation.validation': 0.2,
        'evaluation.every': 4,
      },
      'evaluation.every',
    ),
    ({'components': ('fedpav', 'dacs', 'sscu')}, 'cannot be composed'),
  ],
)
def test_configurations_that_cannot_run(changes, message):
  config = recipes.recipe('sscu', 'smoke')
  config.update_from_flattened_dict(changes)
  with pytest.raises(errors.ConfigError, match=message):
    compose.check(validation.load_components(validation.validate(config)))


def rounds_of(gate, clients, lr=0.01):
  config = toy.replaced(
    toy.toy_config(),
    {'loss.identity': 0.0, 'loss.triplet': 1.0, 'optim.lr': lr},
  )
  config = toy.replaced(config, {'local.sampler': 'pk'})
  chosen = compose.load(
    ('fedpav', 'sscu'), {'sscu': {'gate': gate, 'every': 1}}, algorithms
  )
  return toy.make_rounds(config, clients, chosen)[:2]


@pytest.mark.slow
def test_a_gate_that_accepts_all_is_one_that_is_always_open(clients):
  """And one that accepts nothing keeps the first memory."""
  made, variables = rounds_of('always', clients[:2])
  server, store = made.init(variables)
  server, _ = made.prepare(server, store)
  first = store.stacked().states['sscu'].memory
  np.testing.assert_allclose((first**2).sum(2)[:, :3], 1, rtol=1e-5)
  server, _ = made.round(server, store, 0)
  second = store.stacked().states['sscu'].memory
  assert (second != first).any()
  server, log = made.round(server, store, 1)
  always = jax.device_get(server.shared)
  assert log['metrics']['sscu_precision'] > 50
  made, variables = rounds_of('validation', clients[:2])
  for scores, memory_ in (((1.0, 2.0), second), ((2.0, 1.0), first)):
    server, store = made.init(variables)
    server, _ = made.prepare(server, store)
    for done, score in enumerate(scores):
      server = made.judge(server, done, {'mAP': score})
      if done == 0:
        server, _ = made.round(server, store, 0)
        kept = store.stacked().states['sscu']
        # Until it is judged.
        np.testing.assert_array_equal(kept.memory, first)
        np.testing.assert_array_equal(kept.pending.memory, second)
    server, _ = made.round(server, store, 1)
    kept = store.stacked().states['sscu']
    np.testing.assert_array_equal(kept.memory, memory_)
    same = trees.digest(jax.device_get(server.shared)) == trees.digest(always)
    assert same == (memory_ is second)


SMALL = (
  'smoke,data.height=16,data.width=8,model.features=(4,8),local.steps=2,'
  'data.identities=8,data.target_identities=4,local.batch=8,'
  'local.identities=4,optim.schedule=constant,rounds=4,'
  'evaluation.validation=0.25,evaluation.every=1,sscu.gate=validation,'
  'sscu.every=1'
)


@pytest.fixture
def train(tmp_path, monkeypatch):
  """Returns a function that trains, and returns the states of every save."""
  ordinary = checkpoint.Checkpoints.save

  def run(name, **changes):
    found = {}

    def save(self, step, server, clients, *rest):
      found[step] = jax.device_get((server, clients))
      return ordinary(self, step, server, clients, *rest)

    monkeypatch.setattr(checkpoint.Checkpoints, 'save', save)
    config = recipes.recipe('sscu', SMALL)
    config.update_from_flattened_dict(changes)
    results = loop.train(validation.validate(config), tmp_path / name)
    return found, [e['metrics'] for e in results['evaluation']]

  return run


@pytest.mark.slow
def test_a_resumed_run_with_a_gate_has_the_same_bits(train):
  whole, scores = train('whole')
  train('parts', rounds=2)
  rest, again = train('parts')
  assert [*whole] == [0, 1, 2, 3, 4] and [*rest] == [3, 4]
  toy.assert_equal_trees(rest, {k: whole[k] for k in rest})
  assert again == scores
  judged_ = whole[4][0].states['sscu']
  assert judged_.last == 4 and judged_.score > 0
  # The first client knows by now what became of its first memories.
  for step_ in (1, 2, 3):
    memories = [whole[k][1].states['sscu'] for k in (step_, step_ + 1)]
    accepted = judged_.accepted[judged_.last - step_]
    expected = memories[0].pending.memory if accepted else memories[0].memory
    np.testing.assert_array_equal(memories[1].memory, expected)


@pytest.mark.slow
def test_the_target_decides_nothing(train):
  one, scores = train('one')
  other, others = train('other', **{'data.targets': ('park',)})
  toy.assert_equal_trees(one, other)
  assert scores != others
