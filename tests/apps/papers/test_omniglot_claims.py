"""Claims on Omniglot: their folds, recipes and routes."""

import csv

import numpy as np
import pytest
from PIL import Image

from benchmarks import omniglot_folds
from fedreid_jax import errors
from fedreid_jax.apps.papers import planning
from fedreid_jax.apps.papers.tables import omniglot
from fedreid_jax.apps.papers.tables.index import CLAIMS
from fedreid_jax.data import load

ALPHABETS = ('Alpha', 'Beta', 'Gamma')


@pytest.fixture(scope='module')
def folds(tmp_path_factory):
  """Three alphabets of five characters by twenty drawers."""
  root = tmp_path_factory.mktemp('omniglot')
  rng = np.random.default_rng(0)
  for alphabet in ALPHABETS:
    for k in range(1, 6):
      folder = root / 'images' / alphabet / f'character{k:02}'
      folder.mkdir(parents=True)
      for drawer in range(1, 21):
        pixels = rng.integers(0, 256, (16, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f'{k:04}_{drawer:02}.png')
  omniglot_folds.main(['', str(root / 'images'), str(root / 'folds')])
  return root / 'folds'


def test_clients_have_no_drawing_of_a_test(folds, tmp_path):
  found = omniglot.claims(CLAIMS, folds)
  for name, sources in (('dfh', 2), ('local', 3)):
    for trial in planning.plan([found[name]], (0,), tmp_path).trials[name]:
      for arm, base in trial.runs.values():
        own, other = (load.load(side.config.data) for side in (arm, base))
        assert len(own.clients) == len(other.clients) == sources
        targets = {t.name for t in own.targets}
        names = {client.name for client in own.clients}
        assert (names == targets) == (name == 'local')
        assert names & targets == (names if name == 'local' else set())
  with (folds / 'own' / 'manifest.csv').open() as file:
    rows = [*csv.DictReader(file)]
  trained = {r['identity'] for r in rows if r['split'] == 'train'}
  tested = {r['identity'] for r in rows if r['split'] != 'train'}
  assert (len(trained), len(tested), trained & tested) == (12, 3, set())
  queries = [r['camera'] for r in rows if r['split'] == 'query']
  assert queries == ['01'] * 3


def test_each_alphabet_is_held_out_once(folds, tmp_path):
  found = omniglot.claims(CLAIMS, folds)
  assert [r.name for r in found['kd'].routes] == [*ALPHABETS]
  assert found['by_camera'].routes[0].name == 'Alpha'
  planned = planning.plan([found['by_camera']], (3,), tmp_path)
  (trial,) = planned.trials['by_camera']
  identity, camera = trial.runs['Beta']
  assert identity.config.data.sources == camera.config.data.sources == ('Beta',)
  assert identity.config.data.targets == ('Alpha', 'Gamma')
  assert identity.config.data.num_clients == 4
  assert camera.config.data.client_split == 'by_camera'


@pytest.mark.slow
def test_all_claims_can_be_planned(folds, tmp_path):
  found = omniglot.claims(CLAIMS, folds)
  assert found.keys() < CLAIMS.keys() and len(found) > 20
  for claim in found.values():
    assert ':omniglot' in claim.arm.recipe and ':omniglot' in claim.base.recipe
    for side in (claim.arm, claim.base):
      recipes = side.recipe + side.start
      assert ':rendered' not in recipes and 'imagenet' not in recipes
  planned = planning.plan(found.values(), (0,), tmp_path)
  for cell in planned.cells():
    assert cell.config.model.pretrained == ''


def test_a_folder_without_folds_is_refused(tmp_path):
  with pytest.raises(errors.ConfigError, match='no folds of Omniglot'):
    omniglot.claims(CLAIMS, tmp_path)
