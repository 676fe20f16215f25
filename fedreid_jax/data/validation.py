"""Tests on held-out persons of the training domains, to choose the best round.

Each training domain has one test, named `validation:DOMAIN`. Both its queries
and its gallery are images of held-out persons, whom no client has. The best
checkpoint is then chosen without the targets.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from fedreid_jax.data import federation
from fedreid_jax.data.federation import Images, Target
from fedreid_jax.data.folder import queries

NAME = 'validation:'  # before the name of the domain


def is_validation(target: str) -> bool:
  """Whether a target of this name is a test on held-out persons."""
  return target.startswith(NAME)


def hold_out(
  domains: Sequence[Images], share: float, seed: int
) -> tuple[tuple[Images, ...], tuple[Target, ...]]:
  """Splits domains into training domains and tests on held-out persons.

  A domain has no test if `share`, a fraction of its persons, is less than two.
  """
  trained, tests = [], []
  for domain in domains:
    people = len(np.unique(domain.identities))
    has_cameras = len(np.unique(domain.cameras)) > 1
    # `queries.held_out` would raise the number to two, more than was asked for.
    if round(share * people) < queries.FEWEST:
      trained.append(domain)
      continue
    rows = queries.held_out(
      domain, has_cameras, share, seed, 'evaluation.validation'
    )
    trained.append(domain.take(np.flatnonzero(~rows)))
    tests.append(_test(domain.take(np.flatnonzero(rows)), has_cameras, seed))
  return tuple(trained), tuple(tests)


def notice(tests: Sequence[Target], share: float) -> tuple[str, ...]:
  """Notice for users if no domain is large enough."""
  if tests or not share:
    return ()
  return (
    f'each training domain has fewer than {queries.FEWEST / share:.0f} '
    'identities, so that evaluation.validation holds out none: the targets '
    'choose the best round',
  )


def _test(images: Images, has_cameras: bool, seed: int) -> Target:
  named = images._replace(name=f'{NAME}{images.name}')
  return federation.split_target(
    named,
    _queries(images, has_cameras, seed),
    '' if has_cameras else 'single_shot',  # which has no rule on cameras
  )


def _queries(
  images: Images, has_cameras: bool, seed: int
) -> Bool[np.ndarray, ' M']:
  """Mask of infrared images, or random ones in a domain of one modality."""
  if len(np.unique(images.modalities)) > 1:
    return images.modalities == 1
  cameras = [str(k) for k in np.unique(images.cameras)] if has_cameras else []
  return queries.choose('random', images, cameras, seed).mask
