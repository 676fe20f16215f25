"""Trials of a published data set, which are averaged like seeds.

RegDB, for example, has ten splits of its persons, and published results are
means over ten models. A trial replaces `data.sources` and `data.targets`: a
model is trained on the training persons of the trial and tested on its test
persons.
"""

from typing import Any

from fedreid_jax import errors
from fedreid_jax.config import parsing

FLAG = '--trials'
FIELDS = ('data.sources', 'data.targets')


def parse(text: str) -> list[str]:
  """Returns the trials of `NAME[:option=value,...][;...]`.

  'regdb' has all ten trials, 'regdb:trial=1;regdb:trial=2' has two.

  Raises:
    ConfigError: for an unknown data set or option, or one without trials.
  """
  # Imported here: it takes most of a second, and few sweeps have trials.
  from fedreid_jax.data.datasets import registry

  found = []
  for spec in filter(None, map(str.strip, parsing.split(text, ';'))):
    dataset, _ = registry.parse(spec)
    known = dataset.options.get('trial', ())
    if not known:
      having = [n for n, d in registry.DATASETS.items() if 'trial' in d.options]
      raise errors.ConfigError(
        f'{dataset.name} has no trials', FLAG, f'one of {", ".join(having)}'
      )
    _, _, options = spec.partition(':')
    if any(part.startswith('trial=') for part in options.split(',')):
      found.append(spec)
    else:
      mark = ',' if options else ':'
      found += [f'{spec.rstrip(":")}{mark}trial={trial}' for trial in known]
  return found


def change(config: Any, trial: str) -> Any:
  """Returns the configuration for one trial.

  Args:
    config: configuration that is changed and returned.
    trial: one of the results of `parse`.

  Raises:
    ConfigError: if the images are not those of published data sets.
  """
  if config.data.source != 'datasets' or not config.data.root:
    raise errors.ConfigError(
      f'{trial} is not read with data.source={config.data.source!r} and '
      f'data.root={config.data.root!r}',
      FLAG,
      "set data.root, and data.source='datasets' as the preset paper does",
    )
  return parsing.change(config, [f'{field}={(trial,)!r}' for field in FIELDS])
