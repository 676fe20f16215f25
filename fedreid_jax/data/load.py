"""`config.data` -> the federation of a run."""

from fedreid_jax.data import (
  benchmark_source,
  classification_task,
  client_split,
  federation,
  folder_source,
  synthetic_source,
)
from fedreid_jax.data.federation import Federation

WORLDS = {
  'synthetic': synthetic_source.load,
  'folder': folder_source.load,
  'datasets': benchmark_source.load,
}


def load(config, clients: bool = True) -> Federation:
  """Reads or renders the images a configuration asks for.

  Args:
    config: `config.data`.
    clients: read the sources too, not only the targets.

  Raises:
    DataError: for data that cannot be trained on.
    ConfigError: for an unknown domain, query rule or option, or clients that
      cannot classify what the targets show.
  """
  named = [
    spec.partition(':')[0] for spec in (*config.sources, *config.targets)
  ]
  federation.check_public(config.public.partition(':')[0], named)
  world = WORLDS[config.source](config, clients)
  people = ()
  if clients:
    people = client_split.make_clients(
      world.sources,
      config.client_split,
      config.world_seed,
      config.labels,
      num_clients=config.num_clients,
      concentration=config.concentration,
    )
    if config.task == 'classification':
      classification_task.check_clients(world, people)
  return without_images(config)._replace(
    clients=people,
    targets=world.targets,
    digest=world.digest,
    public=world.public,
    notices=world.notices,
  )


def without_images(config) -> Federation:
  """Returns what a network must know of the images of a configuration.

  Args:
    config: `config.data`.
  """
  channels = 3 if config.channels == 'rgb' else 1
  return Federation(
    clients=(),
    targets=(),
    image_shape=(config.height, config.width, channels),
    mean=tuple(config.mean),
    std=tuple(config.std),
    digest='',
  )
