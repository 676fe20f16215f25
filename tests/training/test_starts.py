import pytest

from fedreid_jax.config import load
from fedreid_jax.training import starts

VIT = 'fedpav:smoke,model.name=vit'
RANDOM = 'is for pretrained weights, and these are random: set model.pretrained'


@pytest.mark.parametrize(
  ('recipe', 'found'),
  [
    ('fedpav:smoke', []),
    (
      'dpsgd:smoke',
      [
        'starts from the weights convnet-synthetic (model.pretrained)',
        'the model before training is therefore a trained one',
      ],
    ),
    (
      'fedpav:smoke,start_from=runs/first',
      [
        'starts from the last models of the run runs/first (start_from)',
        'the model before training is therefore a trained one',
      ],
    ),
    (
      'fedpav:smoke,model.tune=lora',
      [f'warning: model.tune=lora {RANDOM}, to convnet-synthetic for example'],
    ),
    (
      f'{VIT},model.trained=.*prompt,vit.prompts=8',
      [
        f'warning: {field} {RANDOM}, to vit-synthetic for example'
        for field in ('model.trained=.*prompt', 'vit.prompts=8')
      ],
    ),
    (
      'dpsgd:smoke,model.pretrained=,model.norm=group,model.name=resnet50',
      [f'warning: dpsgd.trainable=params/(neck|classifier)/ {RANDOM}'],
    ),
    # A component and a network that the run does not use.
    ('fedpav:smoke,vit.prompts=8', []),
  ],
)
def test_a_run_says_what_it_starts_from(recipe, found):
  assert [*starts.lines(load.load_config(recipe))] == found
