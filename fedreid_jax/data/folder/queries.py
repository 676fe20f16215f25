"""Rules that choose held-out persons, and the query images of a target domain.

All other images of the target are the gallery, also those of nobody. `random`
never makes a query without a match in the gallery:

  no cameras  one random image of each identity with two images or more
  cameras     one random image of each identity in each camera that has several
              images of it, or one random image of it if no camera has; an
              identity that only one camera has seen has no query
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from fedreid_jax import errors
from fedreid_jax.data.federation import NOBODY, Images

RANDOM = 'random'
RULES = {
  RANDOM: 'one random image per identity',
  'first': 'first image per identity',
  'first_per_camera': 'first image per identity',
}
FEWEST = 2  # held-out persons: with one, all of the gallery are matches
# Streams of random numbers of the queries and of the held-out persons.
_QUERIES, _HELD_OUT = 0, 1


class Chosen(NamedTuple):
  """The queries of a target domain."""

  mask: Bool[np.ndarray, ' M']  # whether each image is a query
  described: str  # the rule in words, for users


def choose(
  rule: str, domain: Images, cameras: Sequence[str], seed: int
) -> Chosen:
  """Chooses the queries of a domain, whose images are in canonical order.

  Args:
    rule: 'random', 'first' for the first image of each identity,
      'first_per_camera' for the first of each identity in each camera, or
      'camera=NAME[+NAME...]' for all images of these cameras.
    cameras: names by camera number, empty if there are no cameras.

  Raises:
    ConfigError: for an unknown rule or camera.
    DataError: when 'random' finds no identity with a match.
  """
  if rule.startswith('camera='):
    wanted = rule.removeprefix('camera=').split('+')
    return Chosen(
      _of_cameras(wanted, domain, cameras), f'all images of {"+".join(wanted)}'
    )
  if rule not in RULES:
    raise errors.ConfigError(
      f'unknown query rule {rule!r}',
      'data.query',
      f"'camera=NAME', {', '.join(map(repr, RULES))}",
    )
  if rule == RANDOM:
    return _random(domain, bool(cameras), seed)
  by_camera = bool(cameras) and rule == 'first_per_camera'
  described = RULES[rule] + (' and camera' if by_camera else '')
  described += '' if cameras else ' (no cameras)'
  columns = [domain.identities, *([domain.cameras] if by_camera else ())]
  # `np.unique` returns the first of several equal columns.
  first = np.unique(np.stack(columns), axis=1, return_index=True)[1]
  first = first[domain.identities[first] != NOBODY]
  return Chosen(_mask(domain, first), described)


def testable(domain: Images, has_cameras: bool) -> list[int]:
  """Identities with two images that can match each other.

  With cameras the two must be of different cameras, since the camera rule hides
  matches of the query's camera.
  """
  found = []
  for identity in domain.people.tolist():
    own = domain.cameras[domain.identities == identity]
    if len(np.unique(own)) > 1 or (not has_cameras and len(own) > 1):
      found.append(identity)
  return found


def held_out(
  domain: Images, has_cameras: bool, share: float, seed: int, field: str
) -> Bool[np.ndarray, ' M']:
  """Draws persons to hold out, and returns a mask of their images.

  Only persons who are `testable` are held out. At least two persons are held
  out, and at least one is trained on, or a DataError is raised. `share` is a
  fraction of all persons, and `field` is its name in the configuration.
  """
  people = len(domain.people)
  can = testable(domain, has_cameras)
  number = min(max(round(share * people), FEWEST), len(can), people - 1)
  if number < FEWEST:
    views = ' of different cameras' if has_cameras else ''
    raise errors.DataError(
      f'{errors.counted(people, "identity", "identities")}, of which '
      f'{len(can)} {"has" if len(can) == 1 else "have"} two images{views}',
      domain.name,
      f'give at least three identities, or set {field}=0',
    )
  rng = np.random.default_rng([seed, _HELD_OUT])
  return np.isin(domain.identities, rng.choice(can, number, replace=False))


def _random(domain: Images, has_cameras: bool, seed: int) -> Chosen:
  rng = np.random.default_rng([seed, _QUERIES])
  rows: list[int] = []
  # `alone` counts the identities of whom no camera has several images, `pairs`
  # an identity and a camera that has seen it.
  alone = pairs = 0
  identities = testable(domain, has_cameras)
  for identity in identities:
    own = np.flatnonzero(domain.identities == identity)
    groups = [own]
    if has_cameras:
      seen = domain.cameras[own]
      several = [own[seen == camera] for camera in np.unique(seen)]
      # A single image stays in the gallery, as a match for other cameras.
      groups = [group for group in several if len(group) > 1] or [own]
      alone += groups[0] is own
      pairs += len(several)
    rows += [int(rng.choice(group)) for group in groups]
  if not rows:
    raise errors.DataError(
      f'no identity of {domain.name} has two images'
      + (' of different cameras' if has_cameras else ''),
      'data.query',
      "add images, or set data.camera_pattern=''"
      if has_cameras
      else 'add images',
    )
  if not has_cameras:
    described = ' (no cameras)'
  elif len(rows) == pairs:
    described = ' and camera'
  elif alone == len(identities):
    described = ' (no camera has several of one)'
  else:
    described = ' and camera that has several of the identity'
    if alone:
      described += f', and one per identity without these ({alone})'
  return Chosen(_mask(domain, rows), RULES[RANDOM] + described)


def _of_cameras(
  wanted: Sequence[str], domain: Images, cameras: Sequence[str]
) -> Bool[np.ndarray, ' M']:
  unknown = [name for name in wanted if name not in cameras]
  if unknown:
    raise errors.ConfigError(
      f'no camera {unknown[0]!r} in {domain.name}',
      'data.query',
      f'cameras are {", ".join(cameras[:20])}'
      if cameras
      else 'names have no cameras; set it to random',
    )
  numbers = [cameras.index(name) for name in wanted]
  return np.isin(domain.cameras, numbers) & (domain.identities != NOBODY)


def _mask(domain: Images, rows) -> Bool[np.ndarray, ' M']:
  chosen = np.zeros(len(domain.identities), bool)
  chosen[rows] = True
  return chosen
