"""What a run starts from, in words for its first lines."""

from collections.abc import Iterator
from typing import Any

from fedreid_jax.models import weights

# Fields that leave a network as it starts, or are meant for a trained one.
FEW = ('model.tune', 'model.trained', 'dpsgd.trainable', 'vit.prompts')


def lines(config: Any) -> Iterator[str]:
  """Yields the weights of a configuration, and warnings of random ones."""
  pretrained, run = config.model.pretrained, config.start_from
  if run:
    yield f'starts from the last models of the run {run} (start_from)'
  if pretrained:
    yield f'starts from the weights {pretrained} (model.pretrained)'
  if run or pretrained:
    yield 'the model before training is therefore a trained one'
  for field in [] if pretrained else FEW:
    group, _, name = field.partition('.')
    used = group in ('model', config.model.name, *config.components)
    value = config[group][name] if used else None
    # A backbone that `model` keeps is none of the models of another run.
    if value and (group == 'model' or not run):
      fitting = [
        known
        for known in weights.NAMES
        if weights.card(weights.find(known))['model']['name']
        == config.model.name
      ]
      yield (
        f'warning: {field}={value} is for pretrained weights, and these are '
        'random: set model.pretrained'
        + (f', to {fitting[0]} for example' if fitting else '')
      )
