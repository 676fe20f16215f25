"""Lists the files of a folder of images and checks that they can be read."""

import contextlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data import heic

ARCHIVES = ('.zip', '.tar', '.gz', '.tgz', '.rar', '.7z')
JUNK = ('thumbs.db', 'desktop.ini')
# Folders that devices and file managers create: they have thumbnails, deleted
# files and copies of photographs, which are no photographs of their own.
# Synology, QNAP, Windows, Linux, macOS, Android, network storage. Names that
# begin with @, # or $ are of devices, too, except for numbers such as #12.
NOT_OF_PEOPLE = (
  *('.@__thumb', 'recycle bin', 'recycled', 'recycler'),
  *('system volume information', 'lost+found', '.trash-1000', '__macosx'),
  *('.thumbnails', '.thumbs', '_thumbs', 'thumbs', 'thumbnails', 'trash'),
  *('network trash folder', 'temporary items', '~snapshot', '.snapshot'),
)
_NOT_OF_PEOPLE = re.compile(
  r'[@$].*|#(?!\d).*|found\.\d{3}|.*\.(lrdata|photoslibrary)', re.DOTALL
)
IMAGES = ('.jpg', '.jpeg', '.png', '.webp', '.bmp', '.gif', '.tif', '.tiff')

Bad = list[tuple[str, str]]  # names, and why they cannot be used


def check_root(root: str | os.PathLike, where: str = 'data.root') -> Path:
  """Absolute path of a folder, `~` expanded; DataError if it is unusable."""
  if not str(root):
    raise errors.DataError('no folder given', where, f'set {where}')
  # RuntimeError is for a user without a home, OSError for a folder above that
  # may not be read, or a name that is too long.
  try:
    path = Path(root).expanduser()
    is_folder, exists = path.is_dir(), path.exists()
  except (OSError, RuntimeError) as error:
    raise errors.DataError(
      f'{root} cannot be opened: {getattr(error, "strerror", 0) or error}',
      where,
      'give an existing folder',
    ) from error
  if path.suffix.lower() in ARCHIVES and not is_folder:
    raise errors.DataError(
      f'{root} is an archive', where, 'unpack it first and give the folder'
    )
  if not is_folder:
    what = 'is no folder' if exists else 'does not exist'
    raise errors.DataError(f'{root} {what}', where, 'give an existing folder')
  return path.resolve()


def list_files(root: Path, below: str = '') -> list[str]:
  """Lists all files in `below`, relative to the root, sorted.

  Hidden files, and files and folders that file managers and devices create, are
  ignored; `set_aside` counts the images in such folders.

  Raises:
    DataError: for a folder that cannot be read, a link that leads out of the
      root or to a folder, a file that is not a regular one, a name that is not
      plain text, or two names that differ in case or Unicode form only.
  """
  root = root.resolve()
  found: list[str] = []
  _walk(root, below, found)
  found.sort()
  _check_unlike(found, root)
  return found


def image_ends() -> tuple[str, ...]:
  """Ends of the names of images that can be read, HEIC if installed."""
  return IMAGES + (heic.ENDS if heic.installed() else ())


def list_images(
  root: Path, bad: Bad | None = None, more: tuple[str, ...] = ()
) -> list[str]:
  """Lists the image files below a folder, relative to the root, sorted.

  A file is an image if its name ends with one of `image_ends` or of `more`, in
  upper or lower case; other files are ignored. The result has no file that
  `list_files` refuses, except for names that differ in case or Unicode form
  only. `bad` receives the refused names with reasons, so that the others can be
  used.

  Raises:
    DataError: for a file or folder that `list_files` refuses, without `bad`.
  """
  root = root.resolve()
  found: list[str] = []
  _walk(root, '', found, image_ends() + more, bad)
  found.sort()
  return found


def some_images(root: Path, most: int) -> list[str]:
  """The first images below a folder by name, relative to it, with '/'."""
  found: list[str] = []
  for folder, below, names in os.walk(root):
    below[:] = sorted(
      x for x in below if not (x.startswith('.') or is_device_folder(x))
    )
    at = Path(folder).relative_to(root)
    found += [
      (at / name).as_posix()
      for name in sorted(names)
      if name.lower().endswith(IMAGES) and not name.startswith('.')
    ]
    if len(found) >= most:
      break
  return found[:most]


def is_device_folder(name: str) -> bool:
  """Whether a device or a file manager creates folders of this name."""
  plain = name.casefold()
  return plain in NOT_OF_PEOPLE or bool(_NOT_OF_PEOPLE.fullmatch(plain))


def set_aside(root: Path) -> str:
  """Says how many images folders of devices have, by their names, or ''."""
  counts: Counter[str] = Counter()
  for folder, below, _ in os.walk(root):
    found = [name for name in below if is_device_folder(name)]
    for name in found:
      inside = os.walk(os.path.join(folder, name))
      counts[name] += sum(
        file.lower().endswith(image_ends())
        for _, _, files in inside
        for file in files
      )
    below[:] = [x for x in below if not (x.startswith('.') or x in found)]
  said = [
    f'{errors.counted(n, "image")} in {name}'
    for name, n in counts.most_common()
    if n
  ]
  if not said:
    return ''
  return (
    f'left out: {errors.printable(", ".join(said))}, which devices and file '
    'managers create'
  )


def nothing_in(root: Path) -> str:
  """Says that a folder has no images, and what it has."""
  aside = set_aside(root)
  others = list_others(root, ())
  found = f'no images but other files, {kinds(others)}'
  found = found if others else 'no images'
  return f'{found}; {aside}' if aside else found


def directly_in(root: Path) -> str:
  """Says which images are in no folder below the root, '' for none."""
  names = sorted(
    path.name
    for path in root.iterdir()
    if path.name.lower().endswith(image_ends())
    and not path.name.startswith('.')
    and path.is_file()
  )
  if not names:
    return ''
  number = errors.counted(len(names), 'image')
  return errors.printable(
    f'left out: {number} directly in {root}, such as {names[0]}; images are in '
    'the folders of persons'
  )


def count_others(root: Path, used: Iterable[str]) -> str:
  """Describes the unused files below a folder, '2 .heic, 1 .txt'.

  The largest number comes first.
  """
  return kinds(list_others(root, used))


def list_others(root: Path, used: Iterable[str]) -> list[str]:
  """The unused files below a folder, without hidden ones and `JUNK`."""
  known = {*used}
  others: list[str] = []
  for folder, below, names in os.walk(root):
    below[:] = [
      x for x in below if not (x.startswith('.') or is_device_folder(x))
    ]
    at = os.path.relpath(folder, root).replace(os.sep, '/')
    for name in names:
      path = name if at == '.' else f'{at}/{name}'
      if not (name.startswith('.') or name.lower() in JUNK or path in known):
        others.append(path)
  return others


def kinds(names: Iterable[str]) -> str:
  """Numbers of files by the end of their names, '2 .heic, 1 .txt'."""
  # A part of a file has a name such as a.jpg#0,0,16,32.
  ends = [os.path.splitext(name)[1].lower().partition('#')[0] for name in names]
  counts = sorted(Counter(ends).items(), key=lambda one: (-one[1], one[0]))
  return ', '.join(f'{n:,} {end or "without end"}' for end, n in counts)


def list_folders(root: Path) -> list[str]:
  """Sorted folders without hidden ones; DataError as from `list_files`."""
  root = root.resolve()
  found = []
  with os.scandir(root) as entries:
    for entry in entries:
      if entry.name.startswith('.') or is_device_folder(entry.name):
        continue
      if not entry.is_dir():
        continue
      _check_name(entry.name, root)
      if entry.is_symlink():
        _check_link(root, entry.name)
      found.append(entry.name)
  found.sort()
  _check_unlike(found, root)
  return found


def _check_unlike(names: list[str], root: Path) -> None:
  folded: dict[str, str] = {}
  for name in names:
    # Some disks hold such names equal: a copy of the folder would lose a file.
    plain = unicodedata.normalize('NFC', name).casefold()
    if folded.setdefault(plain, name) != name:
      raise errors.DataError(
        f'{folded[plain]!r} and {name!r} differ in case only',
        str(root),
        'rename one of them',
      )


def _walk(
  root: Path,
  below: str,
  found: list[str],
  # The empty end selects every file.
  ends: tuple[str, ...] = ('',),
  bad: Bad | None = None,
) -> None:
  """Adds the files of a folder whose names have one of the ends."""
  try:
    entries = list(os.scandir(root / below))
  except OSError as error:
    why = error.strerror or str(error)
    if bad is None:
      raise errors.DataError(
        f'cannot be read: {why}', str(root / below), 'change its permissions'
      ) from error
    bad.append((below, why))
    return
  for entry in entries:
    if entry.name.startswith('.') or entry.name.lower() in JUNK:
      continue
    name = f'{below}/{entry.name}' if below else entry.name
    is_folder = False
    with contextlib.suppress(OSError):  # a link to itself
      is_folder = entry.is_dir()
    if not (is_folder or entry.name.lower().endswith(ends)):
      continue
    if is_folder and is_device_folder(entry.name):
      continue
    try:
      _check_entry(entry, name, root)
    except errors.DataError as error:
      if bad is None:
        raise
      bad.append((name, error.what))
      continue
    if is_folder:
      _walk(root, name, found, ends, bad)
    else:
      found.append(name)


def _check_entry(entry: os.DirEntry[str], name: str, root: Path) -> None:
  _check_name(name, root)
  if entry.is_symlink():
    _check_link(root, name)
  if not (entry.is_dir() or entry.is_file()):
    raise errors.DataError('not a regular file', str(root / name), 'remove it')


def _check_name(name: str, root: Path) -> None:
  # Python reads bytes of a name that are not UTF-8 as lone surrogates.
  try:
    name.encode()
  except UnicodeEncodeError:
    shown = name.encode(errors='surrogateescape')
    raise errors.DataError(
      f'{shown!r} is not UTF-8', str(root), 'rename it'
    ) from None
  # An escape sequence in a name would control the terminal that shows it.
  if any(unicodedata.category(c) == 'Cc' for c in name):
    raise errors.DataError(
      f'{name!r} has control characters', str(root), 'rename it'
    )


def _check_link(root: Path, name: str) -> None:
  path = root / name
  try:
    target = path.resolve(strict=True)
  except (OSError, RuntimeError):  # Python 3.11 raises the latter for a loop
    raise errors.DataError(
      'the link is broken', str(path), 'remove it'
    ) from None
  if not target.is_relative_to(root):
    raise errors.DataError(
      'the link leads out of the folder', str(path), 'replace it by a copy'
    )
  if target.is_dir():
    raise errors.DataError(
      'the link leads to a folder', str(path), 'replace it by a copy'
    )
