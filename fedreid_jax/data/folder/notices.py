"""Notices of a folder of images: what was recognised, and what was left out."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data import files, names
from fedreid_jax.data.federation import Target
from fedreid_jax.data.folder import queries
from fedreid_jax.data.folder.domains import Domain
from fedreid_jax.data.folder.folder_layout import Layout, Listing
from fedreid_jax.data.options import Data


def describe(
  config: Data,
  root: Path,
  layout: Layout,
  read: Mapping[str, Domain],
  targets: Sequence[Target],
  within: bool,
) -> tuple[str, ...]:
  """The notices of a folder; the first describes its content."""
  domains = list(read.values())
  counts = [
    (sum(len(one.images.people) for one in domains), 'identity', 'identities'),
    (sum(len(one.hashes) for one in domains), 'image', 'images'),
  ]
  if len(layout.domains) > 1:
    counts.insert(0, (len(domains), 'domain', 'domains'))
  found = [errors.counted(*given) for given in counts]
  found.append(_cameras(layout, read))
  if layout.split:
    tested = 'test images are listed'
  elif within:
    tested = held_out([len(target.images.people) for target in targets])
  else:
    tested = ', '.join(target.name for target in targets) or 'nothing'
    tested = f'test on {tested}'
  lines = [f'{root} ({layout.kind}): {", ".join(found)}; {tested}']
  lines += of_folder(root, layout, [one.listing for one in domains])
  if left_out := copies([pair for one in domains for pair in one.copies]):
    lines.append(left_out)
  chosen = config.query == queries.RANDOM and not layout.split
  for target in targets if chosen else ():
    has_cameras = bool(read[target.name].cameras)
    can = queries.testable(target.images, has_cameras)
    if number := len(target.images.people) - len(can):
      lines.append(without_query(target.name, number, has_cameras))
  alone = within and len(domains) == 1 and config.client_split == 'by_dataset'
  if alone and domains[0].cameras:
    lines.append(
      'there is one client; data.client_split=by_camera makes each camera one'
    )
  return tuple(lines)


def held_out(numbers: Sequence[int]) -> str:
  """Describes the number of held-out identities of each target."""
  *others, last = numbers
  people = errors.counted(last, 'identity', 'identities')
  said = ', '.join([*map(str, others), people])
  verb = 'is' if sum(numbers) == 1 else 'are'
  return f'{said} {verb} held out for the test'


def without_query(name: str, number: int, cameras: bool) -> str:
  """Describes the number of identities of a target that have no query."""
  people = errors.counted(number, 'identity', 'identities')
  reason = 'it has' if number == 1 else 'they have'
  return (
    f'{people} of {name} {"has" if number == 1 else "have"} no query, since '
    f'{reason} no second image' + ' by another camera' * cameras
  )


def _cameras(layout: Layout, read: Mapping[str, Domain]) -> str:
  """Describes the origin of cameras, and the domains if only some have any."""
  known = [name for name, domain in read.items() if domain.cameras]
  if not known:
    return 'no cameras'
  number = sum(len(domain.cameras) for domain in read.values())
  where = '' if len(known) == len(read) else f', only in {", ".join(known)}'
  cameras = errors.counted(number, 'camera')
  return f'{cameras} from {layout.cameras_from}{where}'


def nobody(listings: Sequence[Listing]) -> str:
  """Describes the images of nobody, or ''."""
  distractors = sum(one.identities.count(names.NOBODY) for one in listings)
  junk = sum(one.junk for one in listings)
  said: list[str] = []
  if distractors:
    number = errors.counted(distractors, 'image')
    said.append(f'{number} of 0000, only in the gallery of a test')
  if junk:
    said.append(f'{errors.counted(junk, "image")} of -1, left out')
  return f'nobody, as in Market-1501: {"; ".join(said)}' if said else ''


def copies(found: Sequence[tuple[str, str]]) -> str:
  """Describes files that are left out, each with its original, or ''."""
  if not found:
    return ''
  copy, original = found[0]
  return (
    f'left out: {errors.counted(len(found), "copy", "copies")} of other files '
    f'of a domain; {copy} is {original}'
  )


def guess(listings: Sequence[Listing]) -> str:
  """Gives an example of cameras that were guessed, '' if none were."""
  found = next((one.guess for one in listings if one.guess), '')
  if not found:
    return ''
  return f"a guess: {found}; data.camera_pattern='' reads no cameras"


def alike(listings: Sequence[Listing]) -> str:
  """Says which names persons of two domains share, '' if none.

  Numbers are not compared, because domains often number their persons alike,
  unless the domains are named as parts of a split.
  """
  parts = names.of_splits([one.folder.name for one in listings])
  people = {
    one.folder.name: {
      person
      for person in {*one.identities} - {names.NOBODY}
      if one.folder.name in parts or not re.search(r'\d', person)
    }
    for one in listings
  }
  for one, other in itertools.combinations(people, 2):
    both = sorted(people[one] & people[other])
    if both:
      return (
        f'{errors.counted(len(both), "name")} of persons of {one} and of '
        f'{other}, such as {both[0]}: they are taken as different persons'
      )
  return ''


def of_folder(
  root: Path, layout: Layout, listings: Sequence[Listing]
) -> list[str]:
  """What was left out or guessed when a folder was listed."""
  directly = '' if layout.flat else files.directly_in(root)
  found = (
    *(directly, files.set_aside(root), nobody(listings)),
    *sorted({one.published for one in listings}),
    guess(listings),
    alike(listings) if layout.nested else '',
  )
  return [*filter(None, found)]
