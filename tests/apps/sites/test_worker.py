import os
import stat

import numpy as np
import pytest
import toy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.apps.sites import codec, terms, worker
from fedreid_jax.config import validation
from fedreid_jax.core.types import ClientState

TINY = {
  'data.identities': 4,
  'data.target_identities': 4,
  'data.height': 8,
  'data.width': 8,
}


@pytest.fixture
def config():
  return toy.toy_config()


@pytest.fixture
def said():
  return []


@pytest.fixture
def site(config, said, tmp_path):
  federation = toy.toy_federation((toy.toy_client('ash', 9),))
  return worker.Worker(config, federation, tmp_path, said.append)


@pytest.fixture
def greeted(config, site):
  ask(site, codec.HELLO, agreed=terms.agreed(config))
  return site


def ask(site, kind, **fields):
  return codec.unpack(site.answer(codec.pack(kind, fields)), 'x')


def test_a_site_says_its_name_and_numbers_only(config, site):
  reply = ask(site, codec.HELLO, agreed=terms.agreed(config))
  assert reply.kind == codec.HELLO and not reply.arrays
  found = terms.read_facts(reply.fields, 'x')
  assert found == site.facts
  assert (found.name, found.images, found.identities) == ('ash', 9, 3)
  assert (found.steps, found.padded) == (2, False)


def test_the_place_of_images_may_differ_and_the_method_may_not(config, site):
  config = toy.replaced(
    config, {'data.root': '/elsewhere', 'evaluation.every': 7}
  )
  assert ask(site, codec.HELLO, agreed=terms.agreed(config)).kind == codec.HELLO
  config = toy.replaced(config, {'optim.lr': 0.5, 'data.height': 99})
  code, what, *_ = ask(site, codec.HELLO, agreed=terms.agreed(config)).fields[
    'error'
  ]
  assert code == errors.ConfigError.exit_code
  assert 'optim.lr' in what and 'data.height' in what and 'every' not in what


def test_the_type_of_computation_is_that_of_the_server(config, site):
  def greet(dtype):
    agreed = terms.agreed(config) | {'model.dtype': dtype}
    return ask(site, codec.HELLO, agreed=agreed)

  assert config.model.dtype == 'auto'
  assert [greet(one).kind for one in ('bfloat16', 'float32')] == ['hello'] * 2
  assert "'float31' at the server" in greet('float31').fields['error'][1]


def test_a_site_may_ask_for_a_type_of_computation(config, tmp_path):
  server = terms.agreed(config) | {'model.dtype': 'bfloat16'}
  config = toy.replaced(config, {'model.dtype': 'float32'})
  federation = toy.toy_federation((toy.toy_client('ash', 9),))
  site = worker.Worker(config, federation, tmp_path, str)
  reply = ask(site, codec.HELLO, agreed=server)
  assert "'bfloat16' at the server" in reply.fields['error'][1]


def test_a_site_trains_for_no_coordinator_that_it_does_not_know(config, site):
  assert ask(site, codec.TRAIN).kind == codec.STRANGER
  config = toy.replaced(config, {'optim.lr': 0.5})
  assert ask(site, codec.HELLO, agreed=terms.agreed(config)).kind == 'failed'
  assert ask(site, codec.PREPARE).kind == codec.STRANGER


def test_errors_are_answered_and_printed(greeted, said, monkeypatch):
  assert greeted.answer(b'no message')

  def broken(*_):
    raise RuntimeError('no memory for /srv/photos/a.png')

  monkeypatch.setattr(terms, 'read_terms', broken)
  codes = [
    ask(greeted, 'other').fields['error'][0],
    ask(greeted, codec.TRAIN).fields['error'][0],
  ]
  assert codes == [
    errors.IntegrityError.exit_code,
    errors.InternalError.exit_code,
  ]
  what = ask(greeted, codec.TRAIN).fields['error'][1]
  assert what == 'an error about the program'
  assert 'no memory for /srv/photos/a.png' in said[-1]
  assert len(said) == 4 and all(line.startswith('error[') for line in said)


def test_the_name_of_a_run_is_no_path(greeted, tmp_path):
  given = terms.Terms(0, 1, 1, 3, 0, 3, 3, True)._asdict()
  numbers = {'round': 0, 'start': -1, 'oldest': -1}
  reply = ask(greeted, codec.TRAIN, terms=given, run='../../outside', **numbers)
  assert 'a run named' in reply.fields['error'][1]
  assert not [*tmp_path.iterdir()]


def test_a_site_is_one_client():
  config = validation.validate(fr.load_config('fedpav:smoke', TINY))
  with pytest.raises(errors.DataError, match='one client, not'):
    worker.read_images(config)
  config = toy.replaced(config, {'data.sources': ('plaza',)})
  (client,) = worker.read_images(config, 'entrance').clients
  assert client.name == 'entrance' and client.num_images > 0
  config = toy.replaced(config, {'data.public': 'park'})
  with pytest.raises(errors.ConfigError, match='data.public'):
    worker.read_images(config)


def test_label_spaces_of_a_shared_classifier(config):
  sites = [
    terms.Facts(name, 9, size, 2, False, {})
    for name, size in (('a', 3), ('b', 5))
  ]
  spaces = {}
  for labels in ('', 'concat', 'max'):
    config = toy.replaced(config, {'data.labels': labels})
    found = terms.make(config, sites)
    spaces[labels] = [(t.first_label, t.identities, t.columns) for t in found]
  assert spaces == {
    '': [(0, 3, 5), (0, 5, 5)],
    'concat': [(0, 8, 8), (3, 8, 8)],
    'max': [(0, 5, 5), (0, 5, 5)],
  }


def state(value):
  return ClientState(
    personal={'params/classifier/kernel': np.full((2, 3), value, np.float32)},
    states={'moon': np.int32(value)},
    opt_state=(),
  )


def test_states_are_kept_as_long_as_they_may_be_asked_for(tmp_path):
  kept = worker.PrivateStates(tmp_path / 'run')
  assert stat.S_IMODE(os.stat(tmp_path / 'run').st_mode) == 0o700
  for number in (1, 2, 4):
    kept.save(number, state(number), codec.INITIAL)
  kept.save(5, state(5), 2)
  assert kept.numbers() == [2, 4, 5]
  kept.save(4, state(40), 2)  # a round that the coordinator repeats
  again = worker.PrivateStates(tmp_path / 'run')
  toy.assert_equal_trees(again.load(4, state(0)), state(40))
  toy.assert_equal_trees(again.load(2, state(0)), state(2))


def test_a_state_that_is_missing_damaged_or_of_another_model_is_an_error(
  tmp_path,
):
  kept = worker.PrivateStates(tmp_path)
  kept.save(1, state(1), codec.INITIAL)
  with pytest.raises(errors.IntegrityError, match='after 2 rounds cannot'):
    kept.load(2, state(0))
  other = state(0).replace(states={})
  with pytest.raises(errors.IntegrityError, match='states.moon is int32'):
    kept.load(1, other)
  path = tmp_path / '1.safetensors'
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(data)
  with pytest.raises(errors.IntegrityError, match='was changed'):
    kept.load(1, state(0))
