"""Facts and terms that the coordinator and its sites exchange before a run."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

import fedreid_jax
from fedreid_jax import errors
from fedreid_jax.config import parsing, saved_config
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import client_split
from fedreid_jax.round.cohort import cohort

# All other fields must be equal at the coordinator and at all sites. These are
# about the place of images, tests, machines and the work of the coordinator.
OWN_GROUPS = 'data', 'evaluation', 'execution'
OWN_FIELDS = 'name', 'fraction', 'checkpoint_every', 'start_from'
# Fields of the groups above that change the computation at a site.
EQUAL = (
  *(f'data.{name}' for name in ('height', 'width', 'channels', 'mean', 'std')),
  *(f'data.{name}' for name in ('task', 'labels', 'invert', 'resample')),
  *('execution.deterministic', 'execution.width'),
)


class Facts(NamedTuple):
  """Numbers and versions that a site reports to the coordinator.

  Attributes:
    name: of the site; its hash determines the random keys of the site.
    images: number of its training images.
    identities: number of its identities.
    steps: number of local steps of its longest round.
    padded: whether any of its batches can have padded rows.
    versions: of fedreid_jax and JAX, by name.
  """

  name: str
  images: int
  identities: int
  steps: int
  padded: bool
  versions: dict[str, str]

  def placeholder(self) -> ClientData:
    """Returns a client with as many images and identities, but no pixels."""
    labels = np.arange(self.images, dtype=np.int32) % self.identities
    column = np.zeros(self.images, np.int32)
    return ClientData(
      self.name, self._absent, labels, column, column, self.identities
    )

  def _absent(self) -> np.ndarray:
    raise errors.InternalError(
      'its images are not here', f'site {self.name}', errors.REPORT
    )


def read_facts(fields: Mapping[str, Any], where: str) -> Facts:
  """Returns the facts in the fields of a message.

  Args:
    fields: of an answer to the first message.
    where: sender of the message, for errors.

  Raises:
    IntegrityError: for other fields, or values of wrong types.
  """
  try:
    found = Facts(**fields)
    counts = found.images, found.identities, found.steps
    valid = isinstance(found.name, str) and 0 < len(found.name) < 200
    # `type`, because JSON's `true` would be an int for `isinstance`.
    valid &= all(type(n) is int and n > 0 for n in counts)
    valid &= isinstance(found.padded, bool)
    valid &= isinstance(found.versions, dict)
  except TypeError:
    valid = False
  if not valid:
    raise errors.IntegrityError(
      'an answer that cannot be read', where, 'install the same version'
    )
  return Facts(**fields)


class Terms(NamedTuple):
  """Facts about the whole run that a site needs; they never change.

  Attributes:
    number: canonical index of the site.
    sites: number of sites, `N`.
    cohort: number of sites of a round, `K`.
    columns: number of columns of the classifier, `C`.
    first_label: number that is added to the site's labels.
    identities: number of columns of the classifier that belong to the site.
    steps: number of local steps of the longest round of any site.
    masked: whether any batch of any site can have padded rows.
  """

  number: int
  sites: int
  cohort: int
  columns: int
  first_label: int
  identities: int
  steps: int
  masked: bool


def versions() -> dict[str, str]:
  """Returns the versions that a site and the coordinator compare."""
  return {
    'fedreid_jax': fedreid_jax.__version__,
    'jax': metadata.version('jax'),
  }


def check_versions(site: Facts) -> None:
  """Refuses a site with another version of this package.

  Raises:
    ConfigError: naming both versions.
  """
  here, there = fedreid_jax.__version__, site.versions.get('fedreid_jax')
  if here != there:
    raise errors.ConfigError(
      f'fedreid_jax {there} there, {here} here',
      f'site {site.name}',
      'install the same version',
    )


def agreed(config: Any) -> dict[str, Any]:
  """Returns the fields that a site and the coordinator must agree on."""
  found: dict[str, Any] = {}
  for name, value in parsing.flatten(saved_config.to_json(config)).items():
    own = name.partition('.')[0] in OWN_GROUPS or name in OWN_FIELDS
    if name in EQUAL or not own:
      found[name] = value
  return found


def run_name(config: Any, sites: Sequence[Facts]) -> str:
  """Returns the name of a run at its sites: 16 hexadecimal digits."""
  # Without `rounds`: a run that is continued with more rounds has the same
  # states. Without versions, which may change while a run is interrupted.
  known = [site._replace(versions={}) for site in sites]
  fields = {n: x for n, x in agreed(config).items() if n != 'rounds'}
  text = json.dumps([fields, known], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_run(name: str) -> bool:
  """Returns whether a text has the form of `run_name`."""
  return re.fullmatch('[0-9a-f]{16}', name) is not None


def check_agreed(here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
  """Compares the fields of a site with the fields of the coordinator.

  Raises:
    ConfigError: naming the fields that differ.
  """
  differ = [
    f'{name}: {here.get(name)!r} here, {there.get(name)!r} at the server'
    for name in sorted(here.keys() | there.keys())
    if here.get(name) != there.get(name)
  ]
  if differ:
    raise errors.ConfigError(
      'another configuration: ' + '; '.join(differ[:5]),
      'site',
      'use the recipe of the server, and change only the place of the images',
    )


def make(config: Any, sites: Sequence[Facts]) -> list[Terms]:
  """Returns the terms of each site.

  Args:
    config: of the coordinator.
    sites: facts about all sites, sorted by name.
  """
  sizes = [site.identities for site in sites]
  spaces = client_split.label_spaces(sizes, config.data.labels)
  return [
    Terms(
      number=k,
      sites=len(sites),
      cohort=cohort.size(len(sites), config.fraction),
      columns=max(columns for _, columns in spaces),
      first_label=first,
      identities=columns,
      steps=max(site.steps for site in sites),
      masked=any(site.padded for site in sites),
    )
    for k, (first, columns) in enumerate(spaces)
  ]
