"""Work directories of version 0.1 can still be evaluated."""

import json
import zipfile
from pathlib import Path

import pytest

import fedreid_jax as fr
from fedreid_jax.training import loop

# One round of configs/fedpav_cc.py:smoke, four persons a domain, 16x8 images:
# its configuration has data.world, model.private, cc.images and others.
SAVED = Path(__file__).parents[1] / 'golden' / 'first_edition.zip'


@pytest.fixture
def workdir(tmp_path):
  with zipfile.ZipFile(SAVED) as archive:
    archive.extractall(tmp_path)
  return tmp_path


def test_it_is_evaluated_with_the_figures_it_had(workdir):
  before = json.loads((workdir / 'results.json').read_text())['evaluation'][-1]
  (entry,) = fr.evaluate(workdir)
  assert (entry['round'], entry['model']) == (before['round'], 'cluster:0')
  assert entry['metrics'] == pytest.approx(before['metrics'], abs=0.5)


def test_a_snapshot_has_fields_by_their_new_names(workdir):
  model = fr.load(workdir)
  assert (model.name, model.step) == ('cluster:0', 1)
  assert model.config.components == ('fedpav', 'client_clustering')
  assert model.config.data.source == 'synthetic_v1'


def test_it_is_not_resumed(workdir):
  config = fr.load(workdir).config
  kept = sorted(workdir.rglob('*'))
  with pytest.raises(fr.errors.FedReIDError, match='config.json has no'):
    loop.train(config, workdir)
  left = {path for path in workdir.rglob('*') if path.name != '.lock'}
  assert left == set(kept)
