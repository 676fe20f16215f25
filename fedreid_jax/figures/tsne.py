"""Features in the plane (DFH, figure 6).

Points are features before the neck, where domains differ. For a method that
hallucinates, a second panel shows the hallucinations of the first client in the
same plane: features of every other client's domain, and of a new domain. The
paper shows three identities of a domain; here are images of all, and every
image has its own draws, where training draws once per batch: the cloud is wider
than that of one batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.figures import canvas, clouds
from fedreid_jax.figures.clouds import Cloud
from fedreid_jax.training.loaded_run import LoadedRun

MARKERS = ('o', '^')  # visible, infrared
PERPLEXITY = 30


def embed(found: Sequence[Cloud], seed: int) -> list[np.ndarray]:
  """Maps features of several clouds to one plane by t-SNE, `[M, 2]` each.

  Raises:
    ConfigError: without scikit-learn.
  """
  try:
    import threadpoolctl  # a dependency of scikit-learn
    from sklearn import manifold
  except ImportError as error:
    raise errors.ConfigError(
      'scikit-learn is not installed', 'pictures', canvas.MISSING
    ) from error
  points = np.concatenate([c.features for c in found])
  mapper = manifold.TSNE(
    perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
    init='pca',
    random_state=seed,
  )
  with threadpoolctl.threadpool_limits(1):  # several threads add in any order
    places = mapper.fit_transform(points)
  return np.split(places, np.cumsum([len(c.features) for c in found])[:-1])


def draw(run: LoadedRun, label: str, seed: int = 0) -> Any:
  """Draws the features of a run's domains.

  Args:
    run: with the model.
    label: of the run.
    seed: of images, draws and t-SNE.
  """
  shown = clouds.real(run, seed)
  made: list[Cloud] = []
  if 'dfh' in run.config.components:
    made = clouds.hallucinated(run, seed)
  places = embed([*shown, *made], seed)
  # After seven domains the colours repeat, with hollow markers; black is for
  # the new domain.
  styles = [(c, full) for full in (True, False) for c in canvas.COLOURS[:7]]
  style = {
    cloud.domain: styles[k % len(styles)] for k, cloud in enumerate(shown)
  } | {clouds.NOVEL: ('black', True)}
  figure, panels = canvas.row(1 + bool(made), 4.6, 4.8)
  panels[0].set_title(f'{label}: features', fontsize=10)
  for cloud, where in zip(shown, places, strict=False):
    for panel, alpha in zip(panels, (0.8, 0.15), strict=False):
      scatter(panel, cloud, where, style[cloud.domain], alpha)
  if made:
    own = run.federation.clients[0].name
    panels[1].set_title(
      f'hallucinated from {own}; faint: features', fontsize=10
    )
    for cloud, where in zip(made, places[len(shown) :], strict=True):
      scatter(panels[1], cloud, where, style[cloud.domain], 0.9)
  for panel in panels:
    panel.set_xticks([])
    panel.set_yticks([])
    _legend(panel)
  return figure


def scatter(axes, cloud: Cloud, where, style, alpha: float) -> None:
  """Draws a cloud, with a line in the legend unless it is faint."""
  colour, full = style
  kinds = np.unique(cloud.modalities)
  for kind in kinds:
    rows = cloud.modalities == kind
    suffix = (', visible', ', infrared')[kind] if len(kinds) > 1 else ''
    axes.scatter(
      *where[rows].T,
      s=16,
      facecolors=colour if full else 'none',
      edgecolors='none' if full else colour,
      alpha=alpha,
      marker=MARKERS[kind],
      label=cloud.domain + suffix if alpha > 0.5 else None,
    )


def _legend(axes) -> None:
  labels = axes.get_legend_handles_labels()[1]
  axes.legend(
    fontsize=8,
    loc='upper center',
    bbox_to_anchor=(0.5, 0),
    ncols=2 if len(max(labels, key=len)) > 14 else 4,
    frameon=False,
    handletextpad=0.1,
  )
