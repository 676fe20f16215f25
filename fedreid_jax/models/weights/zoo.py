"""The published weights as a page and as a table, made from their cards.

`docs/zoo.md` is the output of `python -m fedreid_jax.models.weights.zoo`, and
NAME.md beside the file of weights is its `page`.
"""

import hashlib
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors

from fedreid_jax import errors
from fedreid_jax.models import weights

# What the card of published weights has beside `training.model_card.of`.
KEYS = (
  *('name', 'command', 'started_from', 'images', 'persons', 'clients'),
  *('rounds', 'seed', 'seconds', 'version', 'held_out', 'licence'),
)
COLUMNS = (
  *('name', 'network', 'MB', 'pixels', 'images', 'persons', 'mAP', 'licence'),
)

INTRODUCTION = """# Model zoo

These weights come with the package. `fedreid list weights` prints the table.

```sh
fedreid embed --weights=convnet-synthetic --images=FOLDER
fedreid search --weights=convnet-synthetic --gallery=vectors.npy --query=IMAGE
fedreid train dfh --config.model.pretrained=convnet-synthetic
```

The first two commands
[search without training](search.md#weights-without-a-run). The third one starts
a training from the weights. Variants of the network can start from them:
modules that they insert keep their own first values, and stages for infrared
images start from those for visible ones. A run on the world of a training is
refused, because it would test on persons or cameras of the training.

The mAP is of rendered persons whom the training has not seen, with the vectors
that `embed` writes. Cards do not name the code of a training or its machine.
The weights were published on 2026-11-22 (`convnet`, commit 0465b893, and
`resnet18`, e6ae8020), 2026-11-26 (`vit`, 3eab6c02) and 2026-11-28
(`mobilenet_v2`, a90ba234). The page is made from the card in each file:
`python -m fedreid_jax.models.weights.zoo > docs/zoo.md`.
"""

_PAGE = """{heading} {name}

The network `{settings}`, {neck}: {parameters:,} parameters in {size:,} bytes of
{kind}. Images are {height} pixels high and {width} wide, with the mean {mean}
and the standard deviation {std}.

- Data: {images:,} synthetic images of {persons:,} persons at {holders}, world
  {world_seed} of `{source}`.
- Training: `{command}`, {training}.
- Start: {started_from}.
- Held-out persons: {held_out}.
- Licence: {licence}.
- SHA-256: `{digest}`
"""
_NECKS = {
  True: 'with a neck behind its pooled feature',
  False: 'without a neck',
}


class Tensors(NamedTuple):
  """What the header of a file says of its tensors."""

  parameters: int  # numbers that training changes
  kind: str  # type of the stored numbers
  neck: bool


def page(path: Path, heading: str = '#') -> str:
  """The card of published weights in Markdown.

  Raises:
    IntegrityError: for a file whose card lacks an entry.
  """
  about = complete(path)
  tensors = _tensors(path)
  images, normalisation = about['preprocessing'], about['normalisation']
  content = path.read_bytes()
  filled = _PAGE.format(
    **{k: about[k] for k in (*KEYS, 'source', 'world_seed')}
    | {'held_out': _held_out(about)},
    heading=heading,
    parameters=tensors.parameters,
    kind=tensors.kind,
    neck=_NECKS[tensors.neck],
    size=len(content),
    height=images['height'],
    width=images['width'],
    mean=tuple(normalisation['mean']),
    std=tuple(normalisation['std']),
    holders=errors.counted(about['clients'], 'client'),
    training=_training(about),
    settings=weights.settings(path),
    digest=hashlib.sha256(content).hexdigest(),
  )
  return _folded(filled)


def markdown() -> str:
  """The page of all published weights."""
  rows = [row(weights.find(name)) for name in weights.NAMES]
  lines = [COLUMNS, ['---'] * len(COLUMNS), *rows]
  table = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
  pages = [page(weights.find(name), '##') for name in weights.NAMES]
  return '\n'.join([INTRODUCTION, table + '\n', *pages])


def row(path: Path) -> list[str]:
  """The cells of `COLUMNS` for published weights.

  The mAP is the mean over held-out domains.
  """
  about = complete(path)
  images = about['preprocessing']
  precisions = [one['mAP'] for one in about['held_out'].values()]
  return [
    about['name'],
    about['model']['name'],
    f'{path.stat().st_size / 1e6:.1f}',
    f'{images["height"]}x{images["width"]}',
    f'{about["images"]:,}',
    f'{about["persons"]:,}',
    f'{math.fsum(precisions) / len(precisions):.1f}',
    about['licence'],
  ]


def complete(path: Path) -> dict[str, Any]:
  """The card of published weights.

  Raises:
    IntegrityError: if it lacks an entry.
  """
  about = weights.card(path)
  wanted = (*KEYS, 'model', 'preprocessing', 'normalisation', 'source')
  if missing := [key for key in wanted if key not in about]:
    raise errors.IntegrityError(
      f'the card has no {missing[0]}', str(path), 'publish the weights again'
    )
  return about


def _tensors(path: Path) -> Tensors:
  with safetensors.safe_open(path, framework='numpy') as file:
    slices = {name: file.get_slice(name) for name in [*file.keys()]}
    sizes = {n: math.prod(one.get_shape()) for n, one in slices.items()}
    kinds = {one.get_dtype().replace('F', 'float') for one in slices.values()}
  own = sum(size for n, size in sizes.items() if n.startswith('params/'))
  neck = any('/neck/' in name for name in sizes)
  return Tensors(own, ' and '.join(sorted(kinds)), neck)


def _training(about: Mapping[str, Any]) -> str:
  rounds = errors.counted(about['rounds'], 'round')
  seconds = about['seconds']
  took = f' in {seconds:,.0f} seconds' if seconds else ''
  return f'{rounds}{took}, seed {about["seed"]}, version {about["version"]}'


def _held_out(about: Mapping[str, Any]) -> str:
  return '; '.join(
    f'{one["mAP"]:.1f} mAP and {one["rank1"]:.1f} % rank-1 on {name}'
    for name, one in about['held_out'].items()
  )


def _folded(text: str) -> str:
  """Text whose paragraphs and items have lines of at most 80 columns."""
  blocks: list[str] = []
  for block in text.strip().split('\n\n'):
    lines = block.replace('\n  ', ' ').split('\n')
    items = lines if block.startswith('- ') else [' '.join(lines)]
    blocks.append(
      '\n'.join(
        textwrap.fill(
          item,
          errors.WIDTH,
          subsequent_indent='  ' * item.startswith('- '),
          break_long_words=False,
          break_on_hyphens=False,
        )
        for item in items
      )
    )
  return '\n\n'.join(blocks) + '\n'


if __name__ == '__main__':
  print(markdown(), end='')
