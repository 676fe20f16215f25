"""Common parts of figures: Matplotlib if installed, colours, photographs.

Figures can be created in any thread.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import plugins
from fedreid_jax.training.picture import RIGHT, WRONG

# Okabe and Ito, "Color universal design": distinct for any colour vision.
# Their yellow is darkened for points on white.
COLOURS = (
  '#0072B2',
  '#E69F00',
  '#009E73',
  '#CC79A7',
  '#D55E00',
  '#56B4E9',
  '#B3A800',
  '#000000',
)
FORMATS = ('png', 'pdf', 'svg')
PHOTO = 1.0  # height of a photograph, inches
MISSING = plugins.install_command('viz')


class Photo(NamedTuple):
  """A photograph on a sheet."""

  image: np.ndarray  # uint8 `[H, W, ch]`
  right: bool | None = None  # whether the frame marks a match; None: no frame
  caption: str = ''


def check(path: Path) -> None:
  """Refuses a file that could not be written at the end.

  Raises:
    ConfigError: without Matplotlib, or for an unknown format.
  """
  if path.suffix.removeprefix('.') not in FORMATS:
    raise errors.ConfigError(
      f'no format {path.suffix!r}', str(path), f'one of {", ".join(FORMATS)}'
    )
  new(1, 1)


def new(width: float, height: float) -> Any:
  """An empty figure, `width` by `height` inches.

  Raises:
    ConfigError: without Matplotlib.
  """
  try:
    from matplotlib import figure
  except ImportError as error:
    raise errors.ConfigError(
      'Matplotlib is not installed', 'pictures', MISSING
    ) from error
  # pyplot would need a window system and has global state.
  return figure.Figure((width, height), layout='constrained')


def row(num: int, width: float, height: float) -> tuple[Any, Any]:
  """Returns (figure, `num` panels side by side); sizes of a panel in inches."""
  figure, panels = table(1, num, width, height)
  return figure, panels[0]


def table(
  rows: int, columns: int, width: float, height: float
) -> tuple[Any, Any]:
  """Returns (figure, panels `[rows, columns]`); sizes of a panel in inches."""
  figure = new(width * columns + 0.4, height * rows)
  return figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: Any, path: Path) -> None:
  """Writes a figure atomically; equal figures give equal bytes."""
  import matplotlib

  kind = path.suffix.removeprefix('.')
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  # Two formats contain the date, and SVG has random names without a fixed salt.
  dated = {'pdf': 'CreationDate', 'svg': 'Date'}
  metadata = {dated[kind]: None} if kind in dated else {}
  with matplotlib.rc_context({'svg.hashsalt': 'fedreid_jax'}):
    figure.savefig(partial, format=kind, dpi=150, metadata=metadata)
  os.replace(partial, path)


def labels(configs: Sequence[Any], folders: Sequence[Path]) -> list[str]:
  """Returns names of recipes, with seeds or folders if some are equal."""
  names = [config.name for config in configs]
  seeds = [f'{config.name}, seed {config.seed}' for config in configs]
  for found in (names, seeds):
    if len(set(found)) == len(found):
      return found
  short = [f.name for f in folders]
  shown = short if len({*short}) == len(short) else [str(f) for f in folders]
  return [f'{n} ({f})' for n, f in zip(names, shown, strict=True)]


def plain(axes: Any) -> None:
  """Removes the upper and right border and adds a faint grid."""
  axes.spines[['top', 'right']].set_visible(False)
  axes.grid(color='0.9')
  axes.set_axisbelow(True)


def sheet(
  rows: Sequence[Sequence[Photo | None]],
  titles: Sequence[str],
  title: str,
  gaps: Sequence[int] = (),
  tall: float = PHOTO,
) -> Any:
  """Arranges photographs in rows; frames of matches are solid, others dashed.

  None is an empty place. Columns have `titles`, and space before `gaps`.
  Photographs are `tall` inches high.
  """
  height, width = next(p.image.shape for p in rows[0] if p)[:2]
  wide = tall * max(width / height, 0.45)
  lines = max(1 + p.caption.count('\n') for row in rows for p in row if p)
  widths = [1.0] * len(titles)
  for column in gaps:
    widths[column] = 1.3
  figure = new(
    wide * sum(widths) * 1.25 + 0.3,
    len(rows) * (tall + 0.07 + 0.15 * lines) + 0.75,
  )
  figure.suptitle(title, fontsize=10)
  places = figure.subplots(
    len(rows), len(titles), squeeze=False, width_ratios=widths
  )
  for axes, name in zip(places[0], titles, strict=True):
    axes.set_title(name, fontsize=8)
  for line, photos in zip(places, rows, strict=True):
    for column, (axes, photo) in enumerate(zip(line, photos, strict=True)):
      _show(axes, photo, 'E' if column in gaps else 'C')
  return figure


def legend(figure: Any, colours: Mapping[str, str]) -> None:
  """Adds the meaning of colours below the panels of a figure."""
  from matplotlib import patches

  handles = [patches.Patch(color=c, label=name) for c, name in colours.items()]
  figure.legend(
    handles=handles,
    loc='outside lower center',
    ncols=len(handles),
    fontsize=8,
    frameon=False,
  )


def _show(axes: Any, photo: Photo | None, anchor: str) -> None:
  axes.set_xticks([])
  axes.set_yticks([])
  axes.set_anchor(anchor)
  axes.spines[:].set_visible(photo is not None and photo.right is not None)
  if photo is None:
    return
  grey = photo.image.shape[2] == 1
  axes.imshow(
    photo.image[..., 0] if grey else photo.image,
    cmap='gray' if grey else None,
    vmin=0,
    vmax=255,
    interpolation='nearest',
  )
  axes.set_xlabel(photo.caption, fontsize=7, labelpad=2)
  if photo.right is not None:
    axes.spines[:].set_color(RIGHT if photo.right else WRONG)
    axes.spines[:].set_linewidth(2.5)
    # Longer ends would close the gaps of dashes.
    axes.spines[:].set_capstyle('butt')
    axes.spines[:].set_linestyle('-' if photo.right else (0, (2, 1)))
