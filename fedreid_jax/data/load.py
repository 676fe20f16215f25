"""Loads the images of a run as `config.data` describes them."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedreid_jax.core import plugins
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import (
  client_split,
  departures,
  federation,
  poison,
  validation,
)
from fedreid_jax.data.benchmark import benchmark_source
from fedreid_jax.data.federation import Federation, Images, Source
from fedreid_jax.data.folder import folder_source
from fedreid_jax.data.options import Data
from fedreid_jax.data.synthetic import synthetic_source, versions

SOURCES = {
  **dict.fromkeys(versions.NAMES, synthetic_source.load),
  'folder': folder_source.load,
  'datasets': benchmark_source.load,
}


def load(
  config: Data,
  clients: bool = True,
  options: Mapping[str, Any] | None = None,
  held_out: float = 0.0,
) -> Federation:
  """Reads or renders the images of `config.data`.

  Args:
    clients: whether to read the training domains, too.
    options: hyper-parameters of a source that is a plug-in.
    held_out: fraction of the persons of each training domain that no client
      has, `evaluation.validation`; the tests on these persons follow the other
      targets.

  Raises:
    DataError: for data that cannot be trained on.
    ConfigError: for an unknown domain, query rule, option or class of a target.
  """
  source = read(config, clients, options)
  people, tests, notices = (), (), ()
  if clients:
    domains, others = departures.of_domains(source.domains, config.without)
    # Before the split, so that no client has an image of these persons.
    if held_out:
      domains, tests = validation.hold_out(domains, held_out, config.world_seed)
      notices = validation.notice(tests, held_out)
    people = departures.of_clients(divided(config, domains), others)
    notices = (*notices, *poison.notice(config.poison, config.poisoned))
    if config.task == 'classification':
      federation.check_classes(source, people)
  return without_images(config)._replace(
    clients=people,
    targets=(*source.targets, *tests),
    digest=source.digest,
    public=source.public,
    notices=(*source.notices, *notices),
    sources=source.sources,
  )


def read(
  config: Data, clients: bool = True, options: Mapping[str, Any] | None = None
) -> Source:
  """Reads the domains of `config.data` before anything is left out of them.

  The arguments are those of `load`.

  Raises:
    DataError: if the public set is also another domain.
  """
  named = [
    spec.partition(':')[0] for spec in (*config.sources, *config.targets)
  ]
  federation.check_public(config.public.partition(':')[0], named)
  if config.source in SOURCES:
    return SOURCES[config.source](config, clients)
  module = plugins.module_of(config.source, plugins.SOURCE, SOURCES)
  return plugins.call(module, plugins.SOURCE, options or {}, config, clients)


def divided(config: Data, domains: Sequence[Images]) -> tuple[ClientData, ...]:
  """Divides the images of domains into clients, and poisons them if asked.

  Raises:
    DataError: as `client_split.make_clients`.
    ConfigError: as `client_split.hide_labels`.
  """
  # A domain that was left out is no client that could be named.
  poisoned, unlabelled, undivided = (
    tuple(name for name in names if name not in config.without)
    for names in (config.poisoned, config.unlabelled, config.undivided)
  )
  people = client_split.make_clients(
    domains,
    config.client_split,
    config.world_seed,
    config.labels,
    num_clients=config.num_clients,
    concentration=config.concentration,
    undivided=undivided,
  )
  people = poison.poison(
    people,
    config.poison,
    poisoned,
    config.trigger_share,
    config.world_seed,
  )
  return client_split.hide_labels(people, unlabelled)


def without_images(config: Data) -> Federation:
  """Federation with the image shape, mean and std of `config.data` only."""
  channels = 3 if config.channels == 'rgb' else 1
  return Federation(
    clients=(),
    targets=(),
    image_shape=(config.height, config.width, channels),
    mean=tuple(config.mean),
    std=tuple(config.std),
    digest='',
  )
