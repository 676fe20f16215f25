"""Replies that a site may send, right and wrong, without training at it."""

import jax
import numpy as np
import pytest
import toy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.apps.sites import (
  codec,
  federated,
  refused,
  terms,
  told,
  worker,
)
from fedreid_jax.apps.sites.terms import Facts, Members
from fedreid_jax.config import validation

NAMES = 'ash', 'birch', 'cedar', 'dogwood', 'elm'


class Sites:
  """A channel to sites that answer with arrays of the right shapes.

  `bend` maps a name to `(fields, arrays) -> bytes`, the reply of that site.
  """

  def __init__(self, names):
    self.facts = [Facts(n, 9, 3, 2, False, terms.versions()) for n in names]
    self.like, self.bend, self.said = None, {}, []

  def nodes(self):
    return {k: f'key {k}' for k in range(len(self.facts))}

  def ask(self, kind, messages, timeout):
    return ((node, self._answer(kind, node)) for node, _ in messages)

  def _answer(self, kind, node):
    one = self.facts[node]
    if kind == codec.HELLO:
      reply = codec.pack(kind, one._asdict())
    else:
      fields = {'name': one.name}
      reply = codec.pack(kind, fields, self.arrays(one.name))
    bend = self.bend.get(one.name)
    return bend(codec.unpack(reply, '')) if bend else reply

  def arrays(self, name):
    rng = np.random.default_rng(NAMES.index(name))
    drawn = jax.tree.map(
      lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), self.like
    )
    counts = {'num_examples': np.float32(9), 'num_steps': np.int32(2)}
    sums = {n: np.abs(x) for n, x in drawn.pop('sums', {}).items()}
    counts |= {'finite': np.True_, 'images': np.int32(8), 'sums': sums}
    return drawn | counts


def begin(sites, devices=1):
  """Returns (executor, server state, client states) of a coordinator."""
  config = toy.replaced(
    toy.toy_config(), {'model.features': (4,), 'execution.devices': devices}
  )
  members = Members(sites, terms.agreed(config), sites.said.append)
  wanted = federated.Wanted(len(sites.facts), wait_s=0.0)
  found = members.gather(wanted.sites, wanted.wait_s)
  setup = federated.assemble(
    config, toy.toy_federation(()), members, found, wanted
  )
  server, states = setup.rounds.init(setup.variables)
  sites.like = setup.rounds.runner.like(server)[codec.TRAIN]
  return setup.rounds, server, states


def a_round(sites, devices=1):
  executor, server, states = begin(sites, devices)
  server, log = executor.round(server, states, 0)
  return jax.device_get(server), log


@pytest.mark.slow
@pytest.mark.parametrize('num', [1, 2, 3, 4, 5])
def test_any_number_of_sites_on_any_number_of_devices(num):
  expected, first = a_round(Sites(NAMES[:num]))
  for devices in {2, 3, 4, 5} - {num}:
    found, log = a_round(Sites(NAMES[:num]), devices)
    toy.assert_close_trees(found, expected, 1e-6)
    np.testing.assert_allclose(log['weights'], first['weights'], rtol=1e-6)


def test_more_sites_than_devices_that_do_not_divide_by_them():
  server, log = a_round(Sites(NAMES[:3]), 2)
  np.testing.assert_allclose(log['weights'], [1 / 3] * 3, rtol=1e-6)
  sites = Sites(NAMES[:3])
  begin(sites)
  sent = [sites.arrays(name)['shared'] for name in NAMES[:3]]
  for name, leaf in server.shared.items():
    mean = np.mean([one[name] for one in sent], axis=0)
    np.testing.assert_allclose(leaf[0], mean, rtol=1e-5, atol=1e-6)


def changed(**values):
  """Bends arrays of a reply."""
  return lambda m: codec.pack(
    m.kind, m.fields, m.arrays | {n: np.asarray(x) for n, x in values.items()}
  )


def with_nan(message):
  name = next(n for n in message.arrays if n.startswith('shared'))
  leaf = np.full_like(message.arrays[name], np.nan)
  return codec.pack(message.kind, message.fields, message.arrays | {name: leaf})


def failed(told):
  return lambda _: codec.pack(codec.FAILED, {'error': told})


WRONG = {
  'another kind': lambda m: codec.pack(codec.PREPARE, m.fields, m.arrays),
  'hello again': lambda m: codec.pack(codec.HELLO, m.fields, m.arrays),
  'a text': lambda _: 'no bytes',
  'nothing': lambda _: None,
  'no record': lambda _: b'',
  'no name': lambda m: codec.pack(m.kind, {}, m.arrays),
  'the name of another': lambda m: codec.pack(
    m.kind, {'name': 'ash'}, m.arrays
  ),
  'a number as its name': lambda m: codec.pack(m.kind, {'name': 3}, m.arrays),
  'negative images': changed(num_examples=np.float32(-96)),
  'a million images': changed(num_examples=np.float32(1e6)),
  'no number of images': changed(num_examples=np.float32(np.nan)),
  'no steps': changed(num_steps=np.int32(0), images=np.int32(0)),
  'many steps': changed(num_steps=np.int32(10**6)),
  'negative steps': changed(num_steps=np.int32(-1)),
  'images without steps': changed(images=np.int32(10**6)),
  'a loss that is no number': changed(**{'sums.loss': np.float32(np.nan)}),
  'a huge loss': changed(**{'sums.loss': np.float32(1e12)}),
  'an accuracy above all': changed(**{'sums.accuracy': np.float32(1e6)}),
  'an error that is no error': failed(7),
  'an error with a lone surrogate': failed([3, '\ud800', 'x', 'y']),
  'an error of many lines': failed([3, 'a\nb\x1b[2J' * 999, 'x', 'y']),
  'a code that is no code': failed([True, 'a', 'b', 'c']),
}


@pytest.fixture(scope='module')
def three():
  sites = Sites(NAMES[:3])
  executor, server, states = begin(sites)
  return sites, executor, jax.device_get(server), states


def without_birch(three):
  sites, executor, server, states = three
  sites.said.clear()
  server, log = executor.round(executor.put_server(server), states, 0)
  (line,) = sites.said
  line.encode()  # a line that a terminal can print
  assert line.startswith('site birch is left out: error[')
  assert line.isprintable() and len(line) < 1200
  assert log['clients'].tolist() == [0, 2]
  np.testing.assert_allclose(log['weights'], [0.5, 0.5], rtol=1e-6)
  sent = [sites.arrays(name)['shared'] for name in ('ash', 'cedar')]
  for name, leaf in jax.device_get(server.shared).items():
    mean = np.mean([one[name] for one in sent], axis=0)
    np.testing.assert_allclose(leaf[0], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('wrong', WRONG)
def test_one_wrong_reply_leaves_only_its_site_out(three, wrong):
  three[0].bend = {'birch': WRONG[wrong]}
  without_birch(three)


def test_the_order_of_replies_changes_no_bit(three, monkeypatch):
  sites, executor, server, states = three
  sites.bend, found = {'cedar': WRONG['a huge loss']}, []
  ask = sites.ask
  for turn in (1, -1):
    monkeypatch.setattr(sites, 'ask', lambda *x, t=turn: [*ask(*x)][::t])
    given = executor.put_server(server), states, 0
    new, log = executor.round(*given)
    assert log['clients'].tolist() == [0, 1]
    found.append(jax.device_get((new.shared, log['metrics'])))
  toy.assert_equal_trees(*found)


@pytest.mark.parametrize('called', [True, False])
def test_an_update_that_is_not_finite_does_not_count(three, called):
  sites, executor, server, states = three
  finite = {'finite': np.bool_(called)}
  sites.bend = {
    'birch': lambda m: with_nan(m._replace(arrays=m.arrays | finite))
  }
  _, log = executor.round(executor.put_server(server), states, 0)
  assert log['valid'].tolist() == [True, False, True]


@pytest.mark.parametrize(
  'change',
  [
    {'name': 'a\ud800'},
    {'name': 'a\nb'},
    {'name': ''},
    {'images': True},
    {'images': -1},
    {'steps': 10**12},
    {'versions': {'jax': 7}},
    {'versions': []},
    {'versions': None},
    {'versions': {'fedreid_jax': '\ud800'}},
  ],
)
def test_facts_that_are_none_are_refused_in_a_line(change):
  sites = Sites(NAMES[:2])
  sites.facts[1] = sites.facts[1]._replace(**change)
  with pytest.raises(errors.IntegrityError, match='cannot be read') as caught:
    begin(sites)
  caught.value.line().encode()


@pytest.fixture
def site(tmp_path):
  federation = toy.toy_federation((toy.toy_client('ash', 9),))
  config = toy.toy_config()
  made = worker.Worker(config, federation, tmp_path, str)
  hello = codec.pack(codec.HELLO, {'agreed': terms.agreed(config)})
  assert codec.unpack(made.answer(hello), '').kind == codec.HELLO
  return made


GIVEN = terms.Terms(0, 3, 3, 3, 0, 3, 2, False)
FIELDS = {'run': '0' * 16, 'round': 4, 'start': 4, 'oldest': 2}


@pytest.mark.parametrize(
  'given, fields, said',
  [
    ({'steps': 1}, {}, 'another steps'),
    ({'steps': 10**12}, {}, 'another steps'),
    ({'number': 3}, {}, 'another number'),
    ({'number': -1}, {}, 'another number'),
    ({'sites': 0}, {}, 'another sites'),
    ({'cohort': 4}, {}, 'another cohort'),
    ({'identities': 2}, {}, 'another identities'),
    ({'columns': 2}, {}, 'another columns'),
    ({'first_label': 1}, {}, 'another columns'),
    ({'steps': '2'}, {}, 'another steps'),
    ({'steps': True}, {}, 'another steps'),
    ({'masked': 1}, {}, 'another masked'),
    ({'more': 1}, {}, 'another names of fields'),
    ({}, {'round': -2}, 'round -2'),
    ({}, {'round': None}, 'round None'),
    ({}, {'start': 5}, 'round 4 from the state after 5 rounds'),
    ({}, {'oldest': 10**9}, 'oldest 1000000000'),
    ({}, {'oldest': 5}, 'the oldest of which is 5'),
  ],
)
def test_terms_that_no_run_has_are_refused_by_the_site(
  site, tmp_path, given, fields, said
):
  sent = FIELDS | {'terms': GIVEN._asdict() | given} | fields
  reply = codec.unpack(site.answer(codec.pack(codec.TRAIN, sent)), '')
  assert reply.kind == codec.FAILED
  code, what, where, _ = reply.fields['error']
  assert code == errors.IntegrityError.exit_code
  assert said in what and where == worker.SERVER
  assert not [*tmp_path.iterdir()]


def test_an_error_that_is_sent_has_no_path_of_the_site(site, tmp_path):
  sent = FIELDS | {'terms': GIVEN._asdict()}
  arrays = jax.tree.map(
    lambda leaf: np.zeros(leaf.shape, leaf.dtype), site._local(GIVEN).received
  )
  # The state after four rounds is not there.
  reply = site.answer(codec.pack(codec.TRAIN, sent, arrays))
  sent_back = codec.unpack(reply, '').fields['error']
  assert sent_back[0] == errors.IntegrityError.exit_code
  assert sent_back[1] == 'an error about a file that is missing or damaged'
  assert str(tmp_path) not in ' '.join(map(str, sent_back))


@pytest.mark.parametrize(
  'error',
  [
    errors.DataError('no readable image', 'photos/anna b/0001.png', 'fix it'),
    errors.ConfigError('photos/anna is no folder', 'data.root', 'give one'),
    errors.InternalError("open('private/4.safetensors')", 'fedreid site', 'x'),
    errors.ResourceError('anna.png: too large', '', 'lower it'),
  ],
)
def test_no_text_about_the_site_itself_is_sent(error):
  code, what, where, fix = told.of(error)
  assert code == error.exit_code and where == 'site'
  sent = f'{what} {fix}'
  assert what.startswith('an error about') and '/' not in sent
  assert 'anna' not in sent and '.' not in sent


def test_another_file_of_weights_is_told_without_its_path():
  here, there = ({'model.pretrained': f'w/{x}', 'rounds': 1} for x in 'ab')
  with pytest.raises(errors.ConfigError, match='pretrained: another') as caught:
    terms.check_agreed(here, there)
  assert told.of(caught.value)[1] == caught.value.what
  assert 'w/a' not in caught.value.what


@pytest.mark.parametrize('recipe', ['dpsgd', 'dp_fedavg', 'dfh_dp', 'secagg'])
def test_a_site_itself_refuses_a_guarantee_that_it_would_not_have(
  recipe, tmp_path
):
  config = validation.validate(fr.load_config(f'{recipe}:smoke'))
  federation = toy.toy_federation((toy.toy_client('ash', 9),))
  for check in (
    lambda: refused.check(config),
    lambda: worker.Worker(config, federation, tmp_path),
  ):
    with pytest.raises(errors.ConfigError, match='at real sites') as caught:
      check()
    assert caught.value.where == 'components'
