"""What the guarantee of DP-SGD claims, and with which components."""

import pytest
import toy
from private_clients import bound, participants

from fedreid_jax import errors
from fedreid_jax.algorithms import (
  cdw,
  dfh,
  dppt,
  dpsgd,
  fedatt,
  fedbuff,
  fednova,
  fedpav,
  fedprox,
  kd,
  moon,
  noise,
  scaffold,
)
from fedreid_jax.method import guarantee
from fedreid_jax.round import compose

FEDPAV = fedpav.make()


def test_a_claim_is_that_of_the_client_with_the_fewest_identities():
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  people = participants(
    (toy.toy_client('a', 24, 8), toy.toy_client('b', 24, 6)),
    identities=4, batch=8, steps=5,
  )  # fmt: skip
  made = bound(people, noise=2.0, delta=1e-3)
  found = guarantee.Guarantee((FEDPAV, made), people)
  text = found.statement(3)
  alone = people._replace(clients=people.clients[1:])
  assert found.epsilon(3) >= guarantee.Guarantee((FEDPAV, made), alone).epsilon(
    3
  )
  assert 'at delta = 0.001 per identity in one client' in text
  assert 'sampling rate at most 0.6667, 5 steps a round' in text
  assert 'public: numbers of images, identities and steps, 3 rounds' in text
  with pytest.raises(errors.ConfigError, match="message of 'dfh'"):
    found.check(['dfh'])


@pytest.mark.slow
@pytest.mark.parametrize('noise, epsilon', [(10.0, 8.0), (10.0, 2.1)])
def test_epsilon_is_that_of_all_messages(noise, epsilon):
  """Also where the statistics alone take most of it, 1.81."""
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  statistics = dfh.make(dfh.Options(clip=1.0, noise=noise))
  alone = participants(
    (toy.toy_client('a', 32, 16),),
    identities=8, batch=16, steps=10, rounds=20,
  )  # fmt: skip
  people = alone._replace(released=(statistics.released,))
  options = dpsgd.Options(epsilon=epsilon)
  chosen = dpsgd.noise_of(options, people)
  assert chosen > dpsgd.noise_of(options, alone)
  made = bound(people, epsilon=epsilon)
  found = guarantee.Guarantee((FEDPAV, statistics, made), people).epsilon(20)
  assert 0.99 * epsilon < found <= epsilon


def test_statistics_that_take_all_of_epsilon():
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  statistics = dfh.make(dfh.Options(clip=1.0, noise=10.0))
  people = participants(rounds=20, released=(statistics.released,))
  with pytest.raises(errors.ConfigError, match='take epsilon 1.809 alone'):
    bound(people, epsilon=1.8)


@pytest.mark.slow
def test_the_epsilon_of_limited_places_is_the_published_one():
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  people = participants(
    (toy.toy_client('a', 96, 48), toy.toy_client('b', 24, 12)),
    identities=8, batch=16, steps=200,
  )  # fmt: skip
  large = people._replace(clients=people.clients[:1])
  made = bound(large, noise=2.0)
  found = guarantee.Guarantee((FEDPAV, made), large).epsilon(1)
  assert found == pytest.approx(6.134, abs=2e-3)
  both = guarantee.Guarantee((FEDPAV, made), people).epsilon(1)
  assert both > 2 * found
  options = dpsgd.Options(epsilon=8.0)
  small = people._replace(clients=people.clients[1:])
  assert dpsgd.noise_of(options, people) == dpsgd.noise_of(options, small)


@pytest.mark.parametrize(
  'fields, options, message',
  [
    ({'sampler': 'pk'}, {}, "'pk' does not sample.*'poisson_pk'"),
    ({}, {'unit': 'image'}, "does not sample each image.*'poisson'"),
    ({'steps': 0}, {}, 'local.steps'),
    ({'identities': 6}, {}, 'a client has 3 .*local.identities'),
    (
      {'sampler': 'poisson'},
      {'unit': 'image'},
      'a client has 5 .*local.batch',
    ),
  ],
)
def test_runs_that_it_refuses(fields, options, message):
  with pytest.raises(errors.ConfigError, match=message):
    bound(participants(**fields), **options)


def test_delta_is_small_beside_the_identities():
  people = participants()
  made = bound(people, delta=0.01)
  with pytest.raises(errors.ConfigError, match=r'above 1 / \(10 x 12 units\)'):
    guarantee.Guarantee((FEDPAV, made), people)


def private_dfh(**options):
  given = {'clip': 1.0, 'noise': 2.0, 'loss': 'identity'}
  given |= {'normalise': 'released'} | options
  return dfh.make(dfh.Options(**given))


@pytest.mark.parametrize(
  'component',
  [
    cdw.make(cdw.Options(batch='public')),
    fedatt.make(),
    fedbuff.make(),
    fednova.make(),
    kd.make(),
    moon.make(),
    private_dfh(),
    scaffold.make(),
  ],
  ids=lambda one: one.name,
)
def test_components_whose_messages_keep_the_guarantee(component):
  """They see images by the trained model, by noise, or not at all."""
  made = bound()
  compose.check((FEDPAV, component, made))
  people = participants()
  found = guarantee.Guarantee((FEDPAV, component, made), people)
  if component.name not in ('fedatt', 'kd', 'moon'):  # these have no message
    found.check([component.name])
  with pytest.raises(
    errors.ConfigError, match="message of 'dppt' has no bound"
  ):
    found.check(['dppt'])


@pytest.mark.parametrize(
  'component, message',
  [
    (dfh.make(), "images of 'dfh' cannot be bounded.*: it sends statistics"),
    (private_dfh(noise=0.0), "images of 'dfh' cannot"),
    (private_dfh(loss='triplet'), "images of 'dfh' can"),
    (private_dfh(normalise='batch'), "images of 'dfh'"),
    (dppt.make(), "images of 'dppt' cannot.*features of single persons"),
    (cdw.make(), "images of 'cdw' cannot.*it compares scores.*public"),
    (noise.make(), "'dpsgd' cannot be composed with 'noise'"),
    (bound()._replace(name='other'), "'dpsgd' and 'other' both fill"),
  ],
)
def test_components_that_it_cannot_bound(component, message):
  compose.check((FEDPAV, bound(), fedprox.make()))
  with pytest.raises(errors.ConfigError, match=message):
    compose.check((FEDPAV, bound(), component))
