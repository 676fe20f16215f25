"""Every run says which guarantee of privacy it has."""

import json

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import load, recipes, validation
from fedreid_jax.data import client_split
from fedreid_jax.method import rules
from fedreid_jax.training import build, loop
from fedreid_jax.training.files import run_files
from fedreid_jax.training.reports import dry_run

SMALL = (
  'smoke,data.height=16,data.width=8,model.features=(4,),rounds=1,'
  'data.identities=4,data.target_identities=4,local.batch=4'
)
PRIVATE = (
  f'{SMALL},data.num_clients=6,dp_fedavg.min_clients=6,dp_fedavg.delta=1e-2,'
  'dp_fedavg.epsilon=0.0,dp_fedavg.noise=2.0'
)


def train(recipe, arg, folder, **fields):
  config = recipes.recipe(f'configs/{recipe}.py', arg)
  config.update_from_flattened_dict(fields)
  return loop.train(validation.validate(config), folder, verbose=True)


def guarantee(config):
  return build.build(validation.validate(config)).guarantee


@pytest.mark.slow
def test_most_runs_have_none(tmp_path, capsys):
  results = train('fedpav', SMALL, tmp_path)
  assert results['privacy'] == 'no differential privacy'
  assert capsys.readouterr().out.count('privacy: no differential privacy') == 1
  assert json.loads((tmp_path / 'results.json').read_text()) == results


@pytest.mark.slow
def test_a_private_run_says_its_epsilon(tmp_path, capsys):
  """One client of six takes part in a round on average; some have none."""
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  results = train('dp_fedavg', PRIVATE, tmp_path, rounds=12)
  assert results['privacy'].startswith('epsilon = ')
  assert 'at delta = 0.01 per client' in results['privacy']
  assert 'public: numbers of clients' in results['privacy']
  assert '12 rounds' in results['privacy']
  assert results['communication']['up'].keys() == {'model'}
  out, said = capsys.readouterr().out, results['privacy'].partition(' (')[0]
  assert out.count(f'privacy: {said}, after 12 rounds\n') == 1
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  cohorts = [
    e['clients'] for e in map(json.loads, lines) if e['event'] == 'train'
  ]
  assert len({len(clients) for clients in cohorts}) > 1


@pytest.mark.slow
def test_cohorts_of_a_fixed_size_say_so():
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  config = recipes.recipe('configs/dp_fedavg.py', PRIVATE)
  config.cohort = 'fixed'
  said = guarantee(config).statement(1)
  assert 'all clients, noise 2, 2 of 6 clients in every' in said


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'dp_fedavg.min_clients': 7}, '6 clients are too few'),
    ({'batch_stats_rule': 'average'}, 'statistics would.*— batch_stats_rule'),
    ({'model.norm': 'batch'}, "statistics would leave.*— model.norm.*'group'"),
    (
      {'model.norm': 'batch', 'evaluation.batch_stats': 'source'},
      "moments of the clients' images would leave.*— evaluation.batch_stats",
    ),
    ({'evaluation.batch_stats': 'source'}, 'has no statistics of batches'),
    ({'cohort': 'fixed', 'cohort_max': 3}, 'has no largest size'),
    (
      {'components': ('fedpav', 'dfh', 'dp_fedavg'), 'model.neck': 'none'},
      "the message of 'dfh' has no bound",
    ),
    (
      {'components': ('fedpav', 'dp_fedavg', 'compress')},
      "'compress' changes uploads after",
    ),
  ],
)
def test_runs_whose_guarantee_does_not_hold(fields, message, tmp_path):
  with pytest.raises(errors.ConfigError, match=message):
    train('dp_fedavg', PRIVATE, tmp_path, **fields)


def test_a_dry_run_refuses_a_message_without_a_bound(tmp_path):
  config = recipes.recipe('configs/dp_fedavg.py', PRIVATE)
  config.components = ('fedpav', 'dfh', 'dp_fedavg')
  config.model.neck = 'none'
  with pytest.raises(errors.ConfigError, match="message of 'dfh' has no bound"):
    list(dry_run.lines(validation.validate(config), tmp_path))


PERSONS = (
  'smoke,data.height=16,data.width=8,model.features=(4,),model.pretrained=,'
  'model.norm=group,rounds=1,data.identities=4,data.target_identities=4,'
  'local.batch=8,local.identities=4,local.steps=2,dpsgd.trainable=,'
  'dpsgd.epsilon=0.0,dpsgd.noise=2.0,dpsgd.delta=1e-3'
)


@pytest.mark.slow
def test_messages_that_keep_the_guarantee_for_persons(tmp_path):
  """Functions of the trained models cost no epsilon."""
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  fields = {
    'components': ('fedpav', 'dpsgd', 'scaffold', 'cdw'),
    **{'cdw.batch': 'public', 'cdw.images': 8, 'data.public': 'park'},
  }
  results = train('dpsgd', PERSONS, tmp_path, **fields)
  plain = recipes.recipe('configs/dpsgd.py', PERSONS)
  assert results['privacy'] == guarantee(plain).statement(1)
  assert results['privacy'].startswith('epsilon = ')
  assert 'at delta = 0.001 per identity in one client' in results['privacy']


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'model.norm': 'batch'}, 'mixes the images of several persons'),
    ({'loss.triplet': 1.0}, 'dpsgd cannot bound a loss of pairs'),
    ({'loss.circle': 1.0}, 'dpsgd cannot bound a loss of pairs'),
    ({'loss.weighted_triplet': 1.0}, 'loss of pairs'),
    (
      {'local.accumulate': True, 'optim.momentum': 0.0},
      'adds noise to every step',
    ),
    ({'start_from': 'runs/other'}, 'does not cover the rounds of another run'),
    ({'model.norm': 'frozen'}, 'no statistics to freeze'),
    ({'model.pretrained': 'convnet-synthetic'}, 'need their statistics'),
    ({'evaluation.batch_stats': 'source'}, 'no statistics of batches'),
    ({'components': ('fedpav', 'snr', 'dpsgd')}, 'batch normalisation only'),
    (
      {'components': ('fedpav', 'mixstyle', 'dpsgd'), 'mixstyle.stages': (1,)},
      'batch normalisation only',
    ),
    ({'components': ('fedpav', 'ccst', 'dpsgd')}, 'ccst'),
    (
      {'data.client_split': 'by_camera'},
      "with 'by_camera' a person is at several clients.*'by_identity'",
    ),
    (
      {'data.client_split': 'iid', 'data.sources': ('plaza',)},
      "with 'iid' a person is at several clients",
    ),
    (
      {'data.poison': 'shuffle', 'data.poisoned': ('plaza',)},
      'labels of poisoned images are not those of persons',
    ),
    ({'local.sampler': 'pk'}, "'pk' does not sample each identity"),
    ({'local.steps': 0}, 'number of steps depends on the images'),
    ({'local.identities': 8}, 'but a client has 4'),
    (
      {'components': ('fedpav', 'dpsgd', 'cdw')},
      "images of 'cdw' cannot be bounded.*cdw.batch='public'",
    ),
    ({'components': ('fedpav', 'dpsgd', 'noise')}, "composed with 'noise'"),
  ],
)
def test_runs_whose_persons_are_not_protected(fields, message, tmp_path):
  with pytest.raises(errors.ConfigError, match=message):
    train('dpsgd', PERSONS, tmp_path, **fields)


def test_a_person_is_in_one_client_with_the_splits_that_are_allowed():
  """An image is always at one client, so that it may be the unit."""
  domains = tuple(
    toy.toy_images(name, 48, 6)._replace(cameras=np.arange(48, dtype='i4') % 4)
    for name in ('plaza', 'campus')
  )
  for split in client_split.CLIENT_SPLITS:
    alone = split in client_split.OF_ONE_DOMAIN
    clients = client_split.make_clients(
      domains[:1] if alone else domains,
      split, 0, 'global', num_clients=3, concentration=1.0,
    )  # fmt: skip
    persons = [label for c in clients for label in np.unique(c.labels)]
    divided = len(persons) > len({*persons})
    assert divided == (split in rules.DIVIDE_PERSONS), split
    config = recipes.recipe('configs/dpsgd.py', PERSONS)
    config.data.client_split = split
    config.dpsgd.unit, config.local.sampler = 'image', 'poisson'
    assert validation.validate(config)


STATISTICS = f'{PERSONS},dfh.clip=2.0'


@pytest.mark.slow
def test_a_run_that_sends_statistics_with_a_guarantee(tmp_path):
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  results = train('dfh_dp', STATISTICS, tmp_path, **{'dfh.every': 1})
  assert 'at delta = 0.001 per identity in one client' in results['privacy']
  assert 'dfh: noise 2, before round 0 and every round' in results['privacy']
  without = guarantee(recipes.recipe('configs/dpsgd.py', PERSONS))

  def epsilon(statement):
    return float(statement.split()[2])

  assert epsilon(results['privacy']) > epsilon(without.statement(1))


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'dfh.noise': 0.0}, 'sent without — dfh.noise'),
    ({'dfh.clip': 0.0}, 'statistics without a bound'),
    ({'data.client_split': 'by_camera'}, 'a person is at several clients'),
    ({'dfh.loss': 'triplet'}, 'no function of one person.*dfh.loss'),
    ({'dfh.normalise': 'batch'}, 'take away their mean — dfh.normalise'),
    (
      {'components': ('fedpav', 'dfh'), 'local.sampler': 'pk'},
      "the noise of 'dfh' gives no guarantee.*DP-SGD",
    ),
    (
      {'local.sampler': 'poisson', 'dpsgd.unit': 'image', 'local.batch': 4},
      "bound of the message of 'dfh' is for an identity",
    ),
  ],
)
def test_statistics_whose_persons_are_not_protected(fields, message, tmp_path):
  with pytest.raises(errors.ConfigError, match=message):
    train('dfh_dp', STATISTICS, tmp_path, **fields)


def test_a_run_whose_epsilon_chose_the_noise_does_not_go_on(tmp_path):
  """Its noise was that of fewer rounds."""
  config, later = (
    recipes.recipe('configs/dp_fedavg.py', PRIVATE) for _ in range(2)
  )
  for one, rounds in ((config, 2), (later, 3)):
    one.rounds, one.optim.schedule = rounds, 'constant'
  for name, body in (('config.json', load.to_json(config)),
                     ('run.json', {})):  # fmt: skip
    (tmp_path / name).write_text(json.dumps(body))
  run_files.check(tmp_path, load.to_json(later))
  config.dp_fedavg.epsilon = later.dp_fedavg.epsilon = 8.0
  (tmp_path / 'config.json').write_text(json.dumps(load.to_json(config)))
  for one in (config, later):
    one.optim.schedule, one.optim.milestones = 'step', (0.5,)
  (tmp_path / 'config.json').write_text(json.dumps(load.to_json(config)))
  with pytest.raises(errors.ConfigError, match='epsilon chose the noi') as info:
    run_files.check(tmp_path, load.to_json(later), private=True)
  # Neither a schedule nor a start from trained models would be accepted.
  assert info.value.fix == (
    'choose another --workdir, which trains all rounds anew'
  )
  config.dp_fedavg.epsilon = later.dp_fedavg.epsilon = 0.0
  (tmp_path / 'config.json').write_text(json.dumps(load.to_json(config)))
  with pytest.raises(errors.ConfigError, match='fractions') as info:
    run_files.check(tmp_path, load.to_json(later), private=True)
  assert 'add optim.schedule_rounds=2' in info.value.fix
  assert 'start_from' not in info.value.fix
  assert validation.is_private(validation.validate(config))
