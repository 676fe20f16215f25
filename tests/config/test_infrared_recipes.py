"""The settings of L2RW (section 4.1), read off the recipes by hand."""

import pytest

from fedreid_jax.apps.papers.tables import declare, l2rw
from fedreid_jax.config import infrared, recipes, validation

TRUNK = ('params/backbone/', 0.1)
FROZEN = ('params/neck/bn/bias', 0.0)
CIFAR = (0.4914, 0.4822, 0.4465)  # means, as the eraser of CAJ and DNS has them
IMAGENET = (0.485, 0.456, 0.406)


@pytest.mark.parametrize(
  'protocol, rounds, share', [('ci', 50, 0.5), ('ei', 30, 1.0)]
)
def test_dppt(protocol, rounds, share):
  c = validation.validate(recipes.recipe('dppt', f'paper,protocol={protocol}'))
  assert c.components == ('fedavg', 'dppt')
  assert (c.model.name, c.model.pool, c.model.neck) == (
    'resnet50',
    'gem',
    'bnneck',
  )
  assert (c.data.height, c.data.width, c.augment.pad) == (288, 144, 10)
  assert (c.local.sampler, c.local.batch, c.local.identities) == (
    'pk_replace',
    64,
    8,
  )
  assert (c.loss.identity, c.loss.circle) == (1.0, 1.0)
  assert (c.loss.circle_margin, c.loss.circle_gamma) == (0.45, 64.0)
  assert (c.dppt.lam, c.dppt.k, c.dppt.loss, c.dppt.norm) == (
    1.0,
    4,
    'cos',
    True,
  )
  assert c.dppt.target == 'global'
  assert (c.augment.channel, c.rounds) == (share, rounds)
  o = c.optim
  assert (o.lr, o.momentum, o.weight_decay, o.nesterov) == (
    0.2,
    0.9,
    5e-4,
    True,
  )
  assert (o.schedule, o.schedule_per_step, o.reset_each_round) == (
    'linear',
    True,
    False,
  )
  assert o.points == ((0.0, 1e-4), (16.0, 1.0), (float(rounds), 0.0))
  assert o.lr_multipliers == (TRUNK,)
  assert c.data.allow_overlap == (protocol == 'ci')
  assert (
    c.evaluation.feature == 'embedding'
    and c.evaluation.report_both_neck_features
  )


def test_servers_and_locals_of_table_1():
  def made(arg):
    return validation.validate(recipes.recipe('dppt', f'paper,{arg}'))

  nova = made('server=fednova,local=base')
  assert (
    nova.components == ('fedavg', 'fednova') and nova.optim.reset_each_round
  )
  assert made('local=base').augment.channel == 0.0
  assert made('local=ca').components == ('fedavg',)
  assert made('local=ca').augment.channel == 0.5
  own = made('server=moon,local=agw')
  assert own.components == ('fedavg', 'moon') and own.model.variant == 'agw'
  assert (own.loss.circle, own.loss.weighted_triplet) == (0.0, 1.0)
  assert (
    own.optim.lr_multipliers == (FROZEN, TRUNK)
    and own.model.modality_specific_stages == 0
  )
  own = made('server=fedprox,local=dns')
  assert own.components == ('fedavg', 'fedprox', 'dns')
  assert (own.dns.variant, own.model.modality_specific_stages) == (
    'one_stream',
    0,
  )
  assert own.optim.lr_multipliers == infrared.DNS_RATES
  assert own.augment.channel == pytest.approx(2 / 3)


@pytest.mark.parametrize(
  'recipe, size, batch, identities, lr, private',
  [
    ('erm', (288, 144), 64, 8, 0.1, 0),
    ('lba', (288, 144), 64, 8, 0.1, 1),
    ('agw', (288, 144), 64, 8, 0.1, 1),
    ('caj', (288, 144), 96, 8, 0.1, 1),
    ('deen', (384, 144), 48, 6, 0.1, 1),
    ('dns', (288, 144), 48, 6, 0.2, 3),
  ],
)
def test_shared_entities(recipe, size, batch, identities, lr, private):
  c = validation.validate(recipes.recipe(recipe, 'paper'))
  assert (c.data.height, c.data.width) == size
  assert (c.local.batch, c.local.identities) == (batch, identities)
  assert (c.optim.lr, c.model.modality_specific_stages) == (lr, private)
  assert (c.data.client_split, c.rounds, c.optim.reset_each_round) == (
    'entity_shared',
    30,
    False,
  )
  assert c.optim.lr_multipliers[-1] == TRUNK or recipe == 'dns'
  assert (FROZEN in c.optim.lr_multipliers) == (recipe not in ('erm', 'dns'))
  if recipe == 'dns':
    assert c.optim.points == ((0.0, 1e-4), (16.0, 1.0), (30.0, 0.0))
  else:
    assert (c.optim.schedule, c.optim.warmup, c.optim.milestones) == (
      'step',
      10,
      (20, 50),
    )
  assert c.evaluation.feature == ('feature' if recipe == 'lba' else 'embedding')
  assert c.evaluation.report_both_neck_features
  assert c.augment.pad == (0 if recipe == 'lba' else 10)


@pytest.mark.parametrize(
  'recipe, argument, area, fill',
  [
    ('caj', '', (0.02, 0.4), CIFAR),
    ('dns', '', (0.02, 0.4), CIFAR),
    ('dppt', ',local=dns', (0.02, 0.4), CIFAR),
    ('deen', '', (0.2, 0.8), IMAGENET),
  ],
)
def test_erased_rectangles_are_filled_as_in_the_authors_code(
  recipe, argument, area, fill
):
  """ChannelRandomErasing, after Normalize, tries a hundred rectangles."""
  a = validation.validate(recipes.recipe(recipe, f'paper{argument}')).augment
  assert (a.erase, a.erase_area, a.erase_tries) == (0.5, area, 100)
  assert a.erase_fill == fill


@pytest.mark.parametrize('recipe', ['agw', 'erm', 'lba'])
def test_others_erase_nothing(recipe):
  assert recipes.recipe(recipe, 'paper').augment.erase == 0


@pytest.mark.parametrize('local', ['base', 'ca', 'dppt', 'dns', 'agw'])
def test_the_synthetic_world_by_camera_is_large_enough_to_tell(local):
  """At 48 persons and 240 steps channel exchange and base were alike."""
  c = validation.validate(recipes.recipe('dppt', f'synthetic,local={local}'))
  assert (c.data.height, c.data.width, c.local.steps) == (32, 16, 0)
  assert c.data.identities >= 240 and ':identities=' not in c.data.sources[0]
  images = c.data.identities * c.data.shots  # of a camera, which is a client
  steps = images // c.local.batch * c.local.epochs * c.rounds
  assert steps >= 1000


@pytest.mark.parametrize('preset', ['synthetic', 'paper'])
def test_best_rounds_of_entities_are_chosen_among_all(preset):
  for c in (
    recipes.recipe('dppt', f'{preset},protocol=ei'),
    recipes.recipe('dns', preset),
    recipes.recipe('erm', preset),
  ):
    assert c.evaluation.every == 1
  assert recipes.recipe('dppt', preset).evaluation.every > 1


@pytest.mark.parametrize('preset', ['synthetic', 'paper'])
def test_rows_as_released(preset):
  """They differ from the paper's rows by nothing but the memory's loss."""
  for id, paper, label, k in (
    ('l2rw/table2', 'EI DPPT', 'EI DPPT, as released', 3),
    ('l2rw/table3', 'B+CA+mrb cos', 'B+CA+mrb, as released', 5),
  ):
    (table,) = (t for t in l2rw.TABLES if t.id == id)
    rows = [row for row in table.rows if row.label == label]
    own = [row for row in table.rows if row.label == paper]
    assert rows
    assert [r.published for r in rows] == [r.published for r in own]
    for released, printed in zip(rows, own, strict=True):
      c = declare.runs(released, table, preset)[0]
      other = declare.runs(printed, table, preset)[0]
      d = c.dppt
      assert (d.k, d.loss, d.norm, d.lam) == (k, 'mixed', False, 1.0)
      ei = c.data.client_split == 'entity_independent'
      expected = ('zeros', 'skip') if ei else ('global', 'zeros')
      assert (d.target, d.absent) == expected
      with other.unlocked():
        other.dppt = d
      assert other.to_json_best_effort() == c.to_json_best_effort()


def test_channel_exchange_is_always_beside_base_and_dppt():
  """Table 1 prints no row of it; the gain of DPPT is mostly this."""
  for table in l2rw.TABLES[:3]:
    for row in table.rows:
      if 'DPPT' in row.label or 'mrb' in row.label:
        fixed = {'l2rw/table2': 'EI B+CA', 'l2rw/table3': 'B+CA'}
        label = fixed.get(table.id, row.label.replace('DPPT', 'CA'))
        (beside,) = (
          other
          for other in table.rows
          if other.label == label
          and other.changes.get('synthetic') == row.changes.get('synthetic')
        )
        for preset in ('synthetic', 'paper'):
          c = declare.runs(beside, table, preset)[0]
          assert c.augment.channel == (
            1.0 if c.data.client_split == 'entity_independent' else 0.5
          )
          assert 'dppt' not in c.components


@pytest.mark.parametrize('preset', ['synthetic', 'paper'])
def test_rows_of_table_2_train_alike(preset):
  """Shared and independent entities differ in what is shared only."""
  (table,) = (t for t in l2rw.TABLES if t.id == 'l2rw/table2')
  facts = set()
  for row in table.rows:
    for c in declare.runs(row, table, preset):
      assert (
        c.data.client_split
        == {'EI': 'entity_independent', 'ES': 'entity_shared'}[row.label[:2]]
      )
      facts.add((c.rounds, c.local.epochs, c.data.allow_overlap))
      if row.label.startswith('EI'):
        assert c.augment.channel == (0.0 if row.label == 'EI B' else 1.0)
  assert len(facts) == 1 and not facts.pop()[2]
