"""The settings of L2RW (section 4.1), read off the recipes by hand."""

import dataclasses

import pytest

from fedreid_jax.apps.papers.tables import declare, l2rw
from fedreid_jax.config import infrared, parsing, recipes, schema, validation

TRUNK = ('params/backbone/', 0.1)
FROZEN = ('params/neck/bn/bias', 0.0)
CIFAR = (0.4914, 0.4822, 0.4465)  # means, as the eraser of CAJ and DNS has them
IMAGENET = (0.485, 0.456, 0.406)


def check(c, pairs):
  """Asserts that fields have the values of pairs separated by spaces."""
  other = parsing.change(schema.editable(c), pairs.split())
  assert parsing.flatten(other) == parsing.flatten(c)


@pytest.mark.parametrize(
  'protocol, rounds, share', [('ci', 50, 0.5), ('ei', 30, 1.0)]
)
def test_dppt(protocol, rounds, share):
  c = validation.validate(recipes.recipe('dppt', f'paper,protocol={protocol}'))
  check(
    c,
    f"""
    components=("fedavg","dppt")
    model.name=resnet50 model.pool=gem model.neck=bnneck
    data.height=288 data.width=144 augment.pad=10
    local.sampler=pk_replace local.batch=64 local.identities=8
    loss.identity=1.0 loss.circle=1.0
    loss.circle_margin=0.45 loss.circle_gamma=64.0
    dppt.lam=1.0 dppt.k=4 dppt.loss=cos dppt.norm=True dppt.target=global
    augment.channel={share} rounds={rounds}
    optim.lr=0.2 optim.momentum=0.9 optim.weight_decay=5e-4
    optim.nesterov=True optim.schedule=linear optim.schedule_per_step=True
    optim.reset_each_round=False
    optim.points=((0.0,1e-4),(16.0,1.0),({rounds}.0,0.0))
    optim.lr_multipliers=(("params/backbone/",0.1),)
    data.allow_overlap={protocol == 'ci'}
    evaluation.feature=embedding evaluation.report_both_neck_features=True
    """,
  )


def test_servers_and_locals_of_table_1():
  def made(arg):
    return validation.validate(recipes.recipe('dppt', f'paper,{arg}'))

  nova = made('server=fednova,local=base')
  assert nova.components == ('fedavg', 'fednova')
  assert nova.optim.reset_each_round
  assert made('local=base').augment.channel == 0.0
  assert made('local=ca').components == ('fedavg',)
  assert made('local=ca').augment.channel == 0.5
  own = made('server=moon,local=agw')
  assert own.components == ('fedavg', 'moon', 'agw')
  assert (own.loss.circle, own.loss.weighted_triplet) == (0.0, 1.0)
  assert own.optim.lr_multipliers == (FROZEN, TRUNK)
  assert own.model.modality_specific_stages == 0
  own = made('server=fedprox,local=dns')
  assert own.components == ('fedavg', 'fedprox', 'dns')
  check(own, 'dns.variant=one_stream model.modality_specific_stages=0')
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
  check(c, 'data.client_split=entity_shared rounds=30')
  check(c, 'optim.reset_each_round=False')
  assert c.optim.lr_multipliers[-1] == TRUNK or recipe == 'dns'
  assert (FROZEN in c.optim.lr_multipliers) == (recipe not in ('erm', 'dns'))
  if recipe == 'dns':
    assert c.optim.points == ((0.0, 1e-4), (16.0, 1.0), (30.0, 0.0))
  else:
    check(c, 'optim.schedule=step optim.warmup=10 optim.milestones=(20,50)')
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
      d = c.options['dppt']
      assert (d.k, d.loss, d.norm, d.lam) == (k, 'mixed', False, 1.0)
      ei = c.data.client_split == 'entity_independent'
      expected = ('zeros', 'skip') if ei else ('global', 'zeros')
      assert (d.target, d.absent) == expected
      options = {**other.options, 'dppt': d}
      assert dataclasses.replace(other, options=options) == c


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
      split = {'EI': 'entity_independent', 'ES': 'entity_shared'}
      assert c.data.client_split == split[row.label[:2]]
      facts.add((c.rounds, c.local.epochs, c.data.allow_overlap))
      if row.label.startswith('EI'):
        assert c.augment.channel == (0.0 if row.label == 'EI B' else 1.0)
  assert len(facts) == 1 and not facts.pop()[2]
