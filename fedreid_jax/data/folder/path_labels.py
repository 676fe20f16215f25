"""Identities and cameras of the images of any folder, where names have them."""

from pathlib import Path
from typing import Any, NamedTuple

from fedreid_jax.data import names
from fedreid_jax.data.folder import folder_layout


class Label(NamedTuple):
  """Identity and camera of an image, by its path.

  Attributes:
    identity: name of the person, after the domain if there are several.
    camera: name of the camera, '' if nothing is known of cameras.
  """

  identity: str
  camera: str


class _Patterns(NamedTuple):
  identity_pattern: str
  camera_pattern: str


def read(root: Path, config: Any) -> dict[str, Label]:
  """Returns the labels of images by their paths relative to a folder.

  The labels are the same as in training on the folder, with cameras where names
  have them. Images that training would leave out have no label.

  Args:
    root: absolute path of the folder.
    config: `config.data`: `identity_pattern`, `camera_pattern`.

  Raises:
    DataError: for a folder of no known layout.
  """
  pattern = config.camera_pattern
  # No user has chosen these two patterns for the names of this folder.
  if pattern in ('', names.NUMBER):
    pattern = names.AUTO
  patterns = _Patterns(config.identity_pattern, pattern)
  layout = folder_layout.find(root, patterns, needs_cameras=False)
  found: dict[str, Label] = {}
  for domain in layout.domains:
    listing = layout.read(domain)
    below = listing.folder.relative_to(root)
    before = f'{domain}/' if len(layout.domains) > 1 else ''
    cameras = listing.cameras or [''] * len(listing.names)
    for name, identity, camera in zip(
      listing.names, listing.identities, cameras, strict=True
    ):
      found[(below / name).as_posix()] = Label(before + identity, camera)
  return found
