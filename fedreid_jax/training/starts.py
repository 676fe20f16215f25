"""What a run starts from, in words for its first lines."""

from collections.abc import Iterator

from fedreid_jax.config import schema
from fedreid_jax.config.configuration import Config
from fedreid_jax.core.options import Mark
from fedreid_jax.models import tuning, weights


def lines(config: Config) -> Iterator[str]:
  """Yields the weights of a configuration, and warnings of random ones."""
  pretrained, run = config.model.pretrained, config.start_from
  if run:
    yield f'starts from the last models of the run {run} (start_from)'
  # The backbone that `model` keeps is then of that run (`whole_network`).
  if pretrained and not (run and tuning.plan(config.model)):
    yield f'starts from the weights {pretrained} (model.pretrained)'
  if run or pretrained:
    yield 'the model before training is therefore a trained one'
  trained = pretrained or run
  for field in [] if trained else schema.in_use(config, Mark.PRETRAINED):
    group, _, name = field.partition('.')
    fitting = [
      known
      for known in weights.NAMES
      if weights.card(weights.find(known))['model']['name'] == config.model.name
    ]
    value = getattr(getattr(config, group), name)
    yield (
      f'warning: {field}={value} is for pretrained weights, '
      'and these are random: set model.pretrained'
      + (f', to {fitting[0]} for example' if fitting else '')
    )
