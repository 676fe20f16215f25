import pytest

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec, terms
from fedreid_jax.apps.sites.terms import Facts
from fedreid_jax.config import parsing, schema


def facts(name, **changes):
  found = Facts(name, 9, 3, 2, False, terms.versions())
  return found._replace(**changes)


class Line:
  """Nodes that say hello, and answer other messages with their name."""

  def __init__(self, **nodes):
    self.here = {int(node[1:]): one for node, one in nodes.items()}
    self.greeted, self.timeouts = set(), []
    self.keys = {}  # of nodes that have another key than their own

  def start_again(self, node, one):
    self.here[node] = one
    self.greeted -= {node}

  def nodes(self):
    return {node: self.keys.get(node, f'key {node}') for node in self.here}

  def ask(self, kind, messages, timeout):
    self.timeouts.append(timeout)
    for node, _ in messages:
      if node in self.here:
        yield from self._answer(kind, node)

  def _answer(self, kind, node):
    one = self.here[node]
    if isinstance(one, errors.FedReIDError):
      told = [one.exit_code, one.what, one.where, one.fix]
      told = told if one.where else one.what  # a reply that is damaged
      yield node, codec.pack(codec.FAILED, {'error': told})
    elif kind != codec.HELLO and node not in self.greeted:
      yield node, codec.pack(codec.STRANGER, {})
    elif isinstance(one, Facts):
      self.greeted |= {node}
      fields = one._asdict() if kind == codec.HELLO else {'name': one.name}
      yield node, codec.pack(kind, fields)


@pytest.fixture
def said():
  return []


def gathered(line, said, count=2):
  made = terms.Members(line, {}, said.append)
  return made, made.gather(count, 0.0)


def name_of(name, message):
  del name
  return message.fields['name']


def ask(made):
  names, message = ('a', 'b'), lambda _: b''
  return dict(made.ask(codec.TRAIN, names, message, 1.0, name_of, codec.FIELDS))


def test_sites_are_sorted_by_name_and_asked_by_name(said):
  made, found = gathered(Line(n1=facts('b'), n2=facts('a')), said)
  assert [one.name for one in found] == ['a', 'b']
  assert ask(made) == {'a': 'a', 'b': 'b'} and not said


@pytest.mark.parametrize(
  ('nodes', 'error', 'text'),
  [
    ({'n2': facts('a')}, errors.DataError, 'two sites have this name — site a'),
    ({}, errors.ResourceError, '1 of 2 sites within 0 s: a'),
    ({'n2': facts('b'), 'n3': facts('c')}, errors.ConfigError, '3 sites: a, b'),
    (
      {'n2': errors.ConfigError('another recipe', 'site', 'use it')},
      errors.ConfigError,
      'another recipe — site — use it',
    ),
    (
      {'n2': facts('b', versions={'fedreid_jax': '0.0.1'})},
      errors.ConfigError,
      'fedreid_jax 0.0.1 there',
    ),
    ({'n2': facts('b', images=0)}, errors.IntegrityError, 'cannot be read'),
    ({'n2': facts('b', steps=2**40)}, errors.IntegrityError, 'cannot be read'),
    ({'n2': facts('')}, errors.IntegrityError, 'cannot be read'),
  ],
)
def test_sites_that_do_not_fit_end_the_start(nodes, error, text, said):
  with pytest.raises(error, match=text):
    gathered(Line(n1=facts('a'), **nodes), said)


def test_a_site_comes_back_as_another_node(said):
  line = Line(n1=facts('a'), n2=facts('b'))
  made, _ = gathered(line, said)
  del line.here[2]
  assert ask(made) == {'a': 'a'} and said == ['site b did not answer']
  line.here[7], line.keys[7] = facts('b'), 'key 2'
  assert ask(made) == {'a': 'a', 'b': 'b'} and len(said) == 1


def test_a_name_belongs_to_the_key_that_first_bore_it(said):
  line = Line(n1=facts('a'), n2=facts('b'))
  made, _ = gathered(line, said)
  del line.here[2]
  line.here[3] = facts('b')  # another registered key
  assert ask(made) == {'a': 'a'}
  assert 'belongs to another key' in said[0] and 'site b' in said[0]
  # Another start of the run, at which the owner is absent.
  again = terms.Members(line, {}, said.append, made.owners)
  with pytest.raises(errors.DataError, match='another key.*site b'):
    again.gather(2, 0.0)
  del line.here[3]
  line.here[2] = facts('b')
  assert terms.Members(line, {}, said.append, made.owners).gather(2, 0.0)


def test_a_reply_that_is_too_long_is_not_unpacked(said, monkeypatch):
  made, _ = gathered(Line(n1=facts('a'), n2=facts('b')), said)
  given = ('a', 'b'), lambda _: b'', 1.0, lambda name, m: name
  assert not dict(made.ask(codec.TRAIN, *given, largest=50))
  assert 'site a is left out' in said[0] and 'of at most 50' in said[0]


def test_a_site_that_starts_again_at_its_node_is_checked(said):
  line = Line(n1=facts('a'), n2=facts('b'))
  made, _ = gathered(line, said)
  line.start_again(2, facts('b'))
  assert ask(made) == {'a': 'a', 'b': 'b'} and not said
  line.start_again(2, facts('b', images=10))
  assert ask(made) == {'a': 'a'}
  assert 'its images changed' in said[0] and 'b did not answer' in said[1]
  line.start_again(2, errors.ConfigError('another recipe', 'site', 'use it'))
  assert ask(made) == {'a': 'a'} and 'another recipe' in said[2]
  line.start_again(2, facts('b'))
  assert ask(made) == {'a': 'a', 'b': 'b'}


@pytest.mark.parametrize(
  ('one', 'text'),
  [
    (facts('a'), 'two sites have this name'),
    (facts('c'), 'was not there when the run began'),
    (facts('b', images=10), 'its images changed'),
  ],
)
def test_a_node_that_does_not_belong_to_the_run_is_named_once(one, text, said):
  line = Line(n1=facts('a'), n2=facts('b'))
  made, _ = gathered(line, said)
  if one.name == 'b':
    del line.here[2]
  line.here[3], line.keys[3] = one, 'key 1' if one.name == 'a' else 'key 2'
  for _ in range(2):
    ask(made)
  refused = [line for line in said if 'a site was refused' in line]
  assert len(refused) == 1 and text in refused[0]


@pytest.mark.parametrize(
  ('error', 'text'),
  [
    (
      errors.ResourceError('no memory', 'site', 'lower it'),
      'error[6]: no memory — site — lower it',
    ),
    # It cannot be read.
    (
      errors.DataError('no list'),
      'error[70]: an error without a reason — site b',
    ),
  ],
)
def test_the_error_of_a_site_is_said_and_the_others_go_on(error, text, said):
  line = Line(n1=facts('a'), n2=facts('b'))
  made, _ = gathered(line, said)
  line.here[2] = error
  assert ask(made) == {'a': 'a'}
  assert said == [f'site b is left out: {text}']


def test_silent_nodes_delay_one_round_once_and_together(said):
  line = Line(n1=facts('a'), n2=facts('b'))
  made, _ = gathered(line, said)
  line.here |= {3: None, 4: None}
  line.timeouts.clear()
  assert ask(made) == ask(made) == {'a': 'a', 'b': 'b'}
  line.here[3] = errors.ConfigError('another recipe', 'site', 'use it')
  ask(made)
  again = terms.AGAIN_S
  assert line.timeouts == [terms.HELLO_S, 1.0, again, 1.0, again, 1.0]


def test_a_site_chooses_its_own_evaluators_and_their_options():
  config, own = schema.default(), schema.default()
  changes = ["evaluation.extra=('open_set',)", 'open_set.seed=7']
  assert terms.agreed(parsing.change(own, changes)) == terms.agreed(config)
