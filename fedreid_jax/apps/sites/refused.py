"""Methods that real sites refuse, whoever asks them to train.

A coordinator checks them before a run, and each site checks them itself: a site
does not rely on the check of another program for what its operator believes.
"""

from collections.abc import Sequence

from fedreid_jax import errors
from fedreid_jax.config.configuration import Config
from fedreid_jax.method import guarantee
from fedreid_jax.method.component import Component
from fedreid_jax.training import build


def check(config: Config) -> None:
  """Raises ConfigError for components and fields of simulations only."""
  if config.execution.debug:
    raise errors.ConfigError(
      'plain Python at real sites',
      'execution.debug',
      'set it to False, and find the error in a simulation',
    )
  components = build.load_components(config)
  simulated = [c for c in components if 'simulated' in c.properties]
  hidden = [c for c in components if c.summation]
  for wrong, what in (
    (
      hidden,
      'the server receives each upload; secure aggregation is simulated only',
    ),
    (simulated, 'a component of simulations'),
  ):
    if wrong:
      raise errors.ConfigError(
        f'{what} at real sites', 'components', _remove(wrong)
      )
  # Sites have `config.seed`, from which noise and samples of a guarantee
  # follow: each of them could remove the noise.
  guarantee.refuse_at_sites(components)


def _remove(components: Sequence[Component]) -> str:
  return f'remove {" and ".join(repr(c.name) for c in components)}'
