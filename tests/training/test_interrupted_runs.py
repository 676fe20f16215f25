"""Private, robust and compressed runs that were interrupted, to the bit."""

import pytest

from fedreid_jax.config import recipes, validation
from fedreid_jax.core import trees
from fedreid_jax.training import loop, named_models
from fedreid_jax.training.files import run_files

SMALL = (
  'smoke,data.height=16,data.width=8,model.features=(4,),model.pretrained=,'
  'data.identities=4,data.target_identities=4,local.batch=8,local.steps=2,'
  'optim.schedule=constant,privacy.secret=seed'
)
PERSONS = (
  'model.norm=group,local.identities=4,dpsgd.trainable=,dpsgd.epsilon=0.0,'
  'dpsgd.noise=1.0,dpsgd.delta=0.001'
)
# Recipes whose rounds draw noise, cohorts or roundings, or keep an error.
RECIPES = {
  'dp_fedavg': (
    'dp_fedavg.epsilon=0.0,dp_fedavg.noise=1.0,data.num_clients=6,'
    # So that no round is without clients, whatever the key draws.
    'dp_fedavg.min_clients=6,dp_fedavg.delta=0.01,fraction=0.9,'
    "components=('fedpav','dp_fedavg','secagg')"
  ),
  'dfh_dp': PERSONS,
  'compress': 'compress.kind=topk',
  'robust': '',
  'byzantine': '',
}


def train(recipe, folder, **fields):
  """Returns the digests of the final models of a run, or of its rest."""
  config = recipes.recipe(recipe, f'{SMALL},{RECIPES[recipe]}'.rstrip(','))
  config.update_from_flattened_dict(fields)
  loop.train(validation.validate(config), folder)
  saved = run_files.checkpoints_of(folder)
  models = named_models.restore(saved, 'latest').models
  return {name: trees.digest(model) for name, model in models.items()}


@pytest.mark.exact
@pytest.mark.parametrize('recipe', RECIPES)
def test_an_interrupted_run_on_other_devices_has_the_same_bits(
  recipe, tmp_path
):
  whole = train(recipe, tmp_path / 'whole', **{'execution.devices': 1})
  devices = {'execution.devices': 2}
  first = train(recipe, tmp_path / 'parts', rounds=1, **devices)
  assert train(recipe, tmp_path / 'parts', **devices) == whole != first
