"""What the initial weights of a run were trained on, as far as it is known.

A guarantee of privacy covers the rounds of its run only. Weights that were
trained on the same persons before would give away more, so that a private run
refuses weights of its own images. `run.json` and exported files have the digest
of the images of the run (`data_digest`) and those of the runs before it
(`earlier_digests`). The digest is of names, files and sizes: it does not show
that another selection of images has the same persons, so that the guarantee of
a run that starts from a file always has this condition.
"""

from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.config.configuration import Config
from fedreid_jax.models import weights
from fedreid_jax.training.files import recorder, run_files

OWN, EARLIER = 'data_digest', 'earlier_digests'
FIX = 'restore the files of that run, or start from another one'


def digests(config: Config) -> list[str]:
  """The digests of the images that trained the initial weights of a run."""
  found: list[str] = []
  if config.model.pretrained:
    found += _of(_card(config.model.pretrained))
  if config.start_from:
    path = Path(config.start_from).expanduser() / run_files.DESCRIBED
    # `warm_start` refuses a folder without a run.
    if path.exists():
      found += _of(recorder.read_object(path, fix=FIX))
  return [*dict.fromkeys(found)]


def described(
  config: Config, digest: str, before: dict[str, Any] | None
) -> dict[str, Any]:
  """Returns the digests for `run.json`.

  Args:
    digest: of the images of the run.
    before: the object in `run.json` of a run that is resumed.
  """
  if before is None:
    return {OWN: digest, EARLIER: digests(config)}
  # The files of earlier runs may be gone when a run is resumed.
  return {OWN: digest} | {k: before[k] for k in (EARLIER,) if k in before}


def condition(config: Config, digest: str) -> str:
  """Returns the condition under which a guarantee covers the initial weights.

  Args:
    digest: of the images of the run.

  Returns:
    A clause, '' for a run without weights of a file, or with those of this
    package, which were trained on synthetic persons.

  Raises:
    ConfigError: when the weights were trained on the images of the run.
  """
  name = config.model.pretrained
  if not name or name in weights.NAMES:
    return ''
  if digest in _of(_card(name)):
    raise errors.ConfigError(
      f'{name} was trained on the images of this run, and the guarantee does '
      'not cover that training',
      'model.pretrained',
      'start from weights of other persons',
    )
  return f'holds if {Path(name).name} was not trained on persons of this run'


def _card(name: str) -> dict[str, Any]:
  found = weights.card(weights.find(name)).get('run', {})
  return found if isinstance(found, dict) else {}


def _of(described: dict[str, Any]) -> list[str]:
  earlier = described.get(EARLIER) or []
  return [x for x in (described.get(OWN), *earlier) if x and isinstance(x, str)]
