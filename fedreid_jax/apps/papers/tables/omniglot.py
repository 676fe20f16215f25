"""The claims of the papers on Omniglot: alphabets are domains.

`python -m benchmarks.omniglot_folds IMAGES FOLDS` writes a folder for every
alphabet that is held out in turn, and the folder `own`, whose clients are
tested on other characters of their alphabets. Characters are identities, and
the twenty drawers are cameras. All networks start from random weights.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.apps.papers.tables.declare import Arm, Claim, Route
from fedreid_jax.config import recipes

OWN = 'own'  # folder in which the clients' own alphabets are tested
LOCAL = 'local_models'  # component that keeps the clients' models
PUBLIC = 'data.public=public'
# Claims about an alphabet of which no client has drawings.
UNSEEN = (
  *('dfh', 'federation', 'expert', 'snr_dfh', 'dfh_or_snr', 'dfh_clients'),
  *('dfh_novel', 'dfh_loss', 'kd', 'fedprox', 'moon', 'scaffold', 'fedatt'),
  *('individuals', 'one_model', 'average', 'joint', 'noise'),
)
# Claims about other characters of the clients' alphabets.
OF_CLIENTS = (
  *('local', 'local_or_alone', 'cdw', 'upper_bound', 'fednova'),
  *('own_data', 'own_data_or_alone'),
)


def claims(known: dict[str, Claim], root: Path) -> dict[str, Claim]:
  """The claims of the papers that have a meaning here, on the folds in a root.

  Raises:
    ConfigError: if the root has no folds.
  """
  folds = sorted(x.name for x in root.glob('*') if (x / 'public').is_dir())
  if not folds or not (root / OWN).is_dir():
    raise errors.ConfigError(
      'no folds of Omniglot',
      str(root),
      'make them with `python -m benchmarks.omniglot_folds IMAGES FOLDS`',
    )
  unseen = tuple(_route(root / x, (x,), PUBLIC) for x in folds)
  own = (_route(root / OWN, tuple(folds)),)
  found = {name: _moved(known[name], unseen) for name in UNSEEN}
  found |= {name: _moved(known[name], own) for name in OF_CLIENTS}
  # A client for each drawer of an alphabet, or a quarter of its characters.
  found['by_camera'] = _moved(
    known['by_camera'], tuple(_divided(root, folds)), 'data.num_clients=4'
  )
  return {name: claim for name, claim in found.items() if name in known}


def _route(folder: Path, targets: tuple[str, ...], *more: str) -> Route:
  changes = (f'data.root={str(folder)!r}', f'data.targets={targets!r}', *more)
  return Route(folder.name, changes)


def _divided(root: Path, folds: list[str]) -> Iterator[Route]:
  for name in folds:
    others = tuple(x for x in folds if x != name)
    found = _route(root / others[0], others, f'data.sources={(name,)!r}')
    yield Route(name, found.changes)


def _moved(claim: Claim, routes: tuple[Route, ...], *arm: str) -> Claim:
  """The claim with the preset `omniglot` and other routes."""
  return dataclasses.replace(
    claim,
    arm=_preset(claim.arm, *arm),
    base=_preset(claim.base),
    routes=routes,
    minus=(),
    seeds=5,
  )


def _preset(arm: Arm, *more: str) -> Arm:
  def moved(recipe: str) -> str:
    name, _, text = recipe.partition(':')
    return ','.join((f'{name}:omniglot', *text.split(',')[1:], *more))

  recipe = moved(arm.recipe)
  made = recipes.recipe(recipe, '')
  # The nine clients' preset has this component.
  if arm.models == 'client' and 'fedpav' in made.components and not arm.start:
    recipe += f',components={(*made.components, LOCAL)!r}'
  return arm._replace(recipe=recipe, start=arm.start and moved(arm.start))
