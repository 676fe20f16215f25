"""Lines that say what was recognised in a folder of images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data.federation import Images, Target
from fedreid_jax.data.folder import queries
from fedreid_jax.data.folder.folder_domain import Domain
from fedreid_jax.data.folder.listings import Layout


def of(
  config,
  root: Path,
  layout: Layout,
  read: Mapping[str, Domain],
  targets: Sequence[Target],
  within: bool,
) -> tuple[str, ...]:
  """Returns the notices of a folder; the first describes what was found.

  Args:
    config: `config.data`.
    root: the folder.
    layout: of the folder.
    read: domains by name.
    targets: of the run.
    within: whether targets are other persons of the sources.
  """
  domains = list(read.values())
  counts = [
    (sum(_people(one.images) for one in domains), 'identity', 'identities'),
    (sum(len(one.files) for one in domains), 'image', 'images'),
  ]
  if len(layout.domains) > 1:
    counts.insert(0, (len(domains), 'domain', 'domains'))
  found = [errors.counted(*given) for given in counts]
  found.append(_cameras(layout, read))
  if layout.split:
    tested = 'test images are listed'
  elif within:
    tested = _held_out([_people(target.images) for target in targets])
  else:
    tested = ', '.join(target.name for target in targets) or 'nothing'
    tested = f'test on {tested}'
  lines = [f'{root} ({layout.kind}): {", ".join(found)}; {tested}']
  lines += [
    _without_query(target.name, number, bool(read[target.name].cameras))
    for target in targets
    if config.query == 'random'
    and not layout.split
    and (number := _untested(target, bool(read[target.name].cameras)))
  ]
  alone = within and len(domains) == 1 and config.client_split == 'by_dataset'
  if alone and domains[0].cameras:
    lines.append(
      'there is one client; data.client_split=by_camera makes each camera one'
    )
  return tuple(lines)


def _held_out(numbers: Sequence[int]) -> str:
  """Says how many identities of each target are held out."""
  *others, last = numbers
  people = errors.counted(last, 'identity', 'identities')
  said = ', '.join([*map(str, others), people])
  verb = 'is' if sum(numbers) == 1 else 'are'
  return f'{said} {verb} held out for the test'


def _without_query(name: str, number: int, cameras: bool) -> str:
  """Says how many identities of a target are in its gallery only."""
  people = errors.counted(number, 'identity', 'identities')
  reason = 'it has' if number == 1 else 'they have'
  return (
    f'{people} of {name} {"has" if number == 1 else "have"} no query, since '
    f'{reason} no second image' + ' by another camera' * cameras
  )


def _cameras(layout: Layout, read: Mapping[str, Domain]) -> str:
  """Says where cameras were found, and in which domains if not in all."""
  known = [name for name, domain in read.items() if domain.cameras]
  if not known:
    return 'no cameras'
  number = sum(len(domain.cameras) for domain in read.values())
  where = '' if len(known) == len(read) else f', only in {", ".join(known)}'
  cameras = errors.counted(number, 'camera')
  return f'{cameras} from {layout.cameras_from}{where}'


def _people(images: Images) -> int:
  return len(np.unique(images.identities))


def _untested(target: Target, has_cameras: bool) -> int:
  """Returns the number of identities that `random` gives no query."""
  can = queries.testable(target.images, has_cameras)
  return _people(target.images) - len(can)
