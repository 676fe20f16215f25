"""The origin of the secret of a run, and the file in which it is kept.

`privacy.secret=system` draws 32 bytes once and keeps them in the file `secret`
of the work directory, which only its owner can read. They are in no other file
and in no log. Of several processes of one run, the first sends them to the
others through JAX's coordinator, which deletes them once all have read them.
`privacy.secret=seed` needs no file.
"""

import contextlib
import hashlib
import json
import os
import stat
import warnings
from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.config import load
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import secret
from fedreid_jax.core.secret import Secret
from fedreid_jax.data.federation import Federation
from fedreid_jax.method import guarantee
from fedreid_jax.method.component import Component
from fedreid_jax.training.files import run_files

MODE = 0o600  # only the owner reads the file
LOST = (
  'restore it from a copy, or start again with --restart; without it the run '
  'would repeat rounds with other noise'
)


def root(config: Config, workdir: Path, restart: bool) -> bytes:
  """Reads or draws the root of the secret of a run.

  An `ExposedSecretWarning` says that users other than the owner could read the
  file, whose permissions are then corrected.

  Raises:
    IntegrityError: if the file is damaged.
  """
  if config.privacy.secret == 'seed':
    return secret.of_seed(config.seed)
  path = workdir / run_files.SECRET
  # A resumed run must repeat the noise of a round that was not saved.
  if restart or not path.exists():
    return secret.draw()
  with errors.on_disk(path):
    text = path.read_text(errors='replace')
  _close(path)
  kept, _, checksum = text.strip().partition(' ')
  if len(kept) != 2 * secret.SIZE or checksum != _checksum(kept):
    raise errors.IntegrityError('the secret is damaged', str(path), LOST)
  return bytes.fromhex(kept)


def _close(path: Path) -> None:
  """Removes the permission of others to read a secret, with a warning."""
  mode = stat.S_IMODE(path.stat().st_mode)
  if not mode & ~MODE:
    return
  with contextlib.suppress(OSError):  # not the owner, or no modes on this disk
    path.chmod(MODE)
  now = stat.S_IMODE(path.stat().st_mode)
  fix = f'it is {now:o} now' if now == MODE else f'set it to {MODE:o}'
  warnings.warn(
    f'the secret could be read by others: {path} had the mode {mode:o}, {fix}; '
    'whoever has read it can remove the noise of this run',
    errors.ExposedSecretWarning,
    stacklevel=2,
  )


def keep(config: Config, workdir: Path, root_: bytes, begun: bool) -> None:
  """Writes the file of a secret that was drawn by the system.

  Raises:
    IntegrityError: if the run has `begun` with a secret that is not there.
  """
  path = workdir / run_files.SECRET
  if config.privacy.secret == 'seed' or path.exists():
    return
  if begun:
    raise errors.IntegrityError('the secret is missing', str(path), LOST)
  partial = path.with_name(f'{path.name}.partial')
  with errors.on_disk(path):
    partial.unlink(missing_ok=True)
    # Nobody else may read it at any moment, so that a later chmod is too late.
    opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    with os.fdopen(opened, 'w') as file:
      file.write(f'{root_.hex()} {_checksum(root_.hex())}\n')
      file.flush()
      # Noise must not be released before its secret is on the disk: a run that
      # is resumed with another one repeats rounds with other noise.
      os.fsync(file.fileno())
    os.replace(partial, path)


def make(
  config: Config,
  federation: Federation,
  components: tuple[Component, ...],
  root_: bytes | None,
) -> Secret | None:
  """The secret of a run, None if its method needs none.

  Without a root a new one is drawn, unless it follows from the seed.
  """
  if not guarantee.is_protected(components):
    return None
  if config.privacy.secret == 'seed':
    root_ = secret.of_seed(config.seed)
  return Secret(root_ or secret.draw(), digest(config, federation))


def digest(config: Config, federation: Federation) -> str:
  """The SHA-256 of all that the updates of a run depend on.

  The number of rounds is left out, unless more rounds would have changed the
  first ones.
  """
  resolved = load.to_json(config)
  # Results do not depend on the execution.
  del resolved['execution']
  found = hashlib.sha256()
  about = [run_files.digests(resolved)[0], federation.digest]
  found.update(json.dumps(about).encode())
  for client in federation.clients:
    found.update(json.dumps([client.name, client.num_identities]).encode())
    columns = client.labels, client.cameras, client.modalities
    for column in (*columns, client.tracklets):
      if column is not None:
        found.update(column.tobytes())
    if not federation.digest:  # images of arrays, not of files
      found.update(client.images().tobytes())
  return found.hexdigest()


def _checksum(kept: str) -> str:
  return hashlib.sha256(kept.encode()).hexdigest()[:16]
