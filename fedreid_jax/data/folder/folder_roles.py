"""Chooses the domains of a folder to train on and to test on."""

from pathlib import Path
from typing import NamedTuple

from fedreid_jax import errors
from fedreid_jax.data import federation
from fedreid_jax.data.folder.listings import Layout


class Roles(NamedTuple):
  """The domains of a run.

  Attributes:
    sources: domains to train on.
    targets: domains to test on.
    public: the public domain, or none.
    within: whether the targets show other persons of the source domains.
  """

  sources: tuple[str, ...]
  targets: tuple[str, ...]
  public: tuple[str, ...]
  within: bool


def choose(config, layout: Layout, root: Path, clients: bool) -> Roles:
  """Returns the domains to train and to test on.

  Args:
    config: `config.data`: `sources`, `targets`, `public`, `held_out`.
    layout: layout of the folder.
    root: the folder, for messages.
    clients: whether to train.

  Raises:
    DataError: for a domain that does not exist or has two roles.
  """
  present = layout.domains
  sources, targets = tuple(config.sources), tuple(config.targets)
  public = (config.public,) if config.public and clients else ()
  known = {*(sources or present)}
  holds = config.held_out > 0 and not targets
  within = layout.split or (holds and len(present) == 1 and present[0] in known)
  if within:
    sources, targets = sources or present, targets or present
  # Of several domains the last one is held out as a whole.
  elif holds:
    left = [n for n in present if n not in (*sources, config.public)]
    targets = tuple(left[-1:])
  sources = sources or tuple(
    n for n in present if n not in (*targets, config.public)
  )
  for name in (*(sources if clients else ()), *targets, *public):
    if name not in present:
      raise errors.DataError(
        f'no domain {name!r}', str(root), f'domains are {", ".join(present)}'
      )
  if clients and not sources:
    raise errors.DataError(
      f'no domain to train on but {", ".join(targets)}',
      str(root),
      'add a domain, or change data.targets',
    )
  if not within and not config.allow_overlap:
    federation.check_disjoint(sources, targets)
  return Roles(sources, targets, public, within)
