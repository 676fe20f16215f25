"""Features in the plane (DFH, figure 6).

As in the paper, a panel shows the features of three random identities of each
training domain under the final model of the server, and the features of a novel
domain that the method of the run hallucinates from the images of one domain.
Colours are domains and markers are identities. The paper compares three
methods: Dirichlet-MixUp and Feature-MixUp of hallucinated features, and DFH
(`dfh.novel` is 'dirichlet_mixup', 'feature_mixup' and 'dirichlet'). Here every
run has a panel.

Deviations: the paper does not say whether its panels share one model; here each
panel has the model of its run. The paper does not say how often statistics are
drawn for the figure; here they are drawn once for all images (`clouds`), which
shows the effect of the method on the pairwise structure of a batch. The
features are those that the statistics describe (`dfh.space`). A run without a
novel domain (`dfh.novel` is 'none') shows features of the other domains
instead, and a run without DFH shows only real features.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.figures import canvas, clouds
from fedreid_jax.figures.clouds import Cloud
from fedreid_jax.training import loaded_run
from fedreid_jax.training.loaded_run import LoadedRun

# The first two denote modalities in `persons`.
MARKERS = ('o', '^', 's')
PERPLEXITY = 30
METHODS = {
  'dirichlet': 'DFH',
  'dirichlet_mixup': 'FH + Dirichlet-MixUp',
  'feature_mixup': 'FH + Feature-MixUp',
  'none': 'FH',
}


def embed(found: Sequence[Cloud], seed: int) -> list[np.ndarray]:
  """Maps the features of all clouds to one plane by t-SNE, `[M, 2]` each.

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
    # scikit-learn needs a perplexity below the number of points.
    perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
    init='pca',
    random_state=seed,
  )
  # Several threads would add in any order, and the figure would vary.
  with threadpoolctl.threadpool_limits(1):
    places = mapper.fit_transform(points)
  return np.split(places, np.cumsum([len(c.features) for c in found])[:-1])


def draw(
  runs: Sequence[tuple[str, LoadedRun]], source: str = '', seed: int = 0
) -> Any:
  """Draws a panel per run.

  Args:
    runs: (label, run).
    source: name of the client whose features are transformed, '' for the first.
    seed: random seed of images, draws and t-SNE.
  """
  figure, panels = canvas.row(len(runs), 4.2, 4.8)
  names = {c.name: None for _, run in runs for c in run.federation.clients}
  by_domain = styles(list(names))
  shown: dict[str, Style] = {}
  for axes, (label, run) in zip(panels, runs, strict=True):
    found = {c.name: (c, by_domain[c.name]) for c in clouds.real(run, seed)}
    if loaded_run.statistics_sender(run):
      own = run.client(source).name
      for c in clouds.hallucinated(run, source, seed):
        colour = by_domain[c.name].colour if c.name in by_domain else 'black'
        name = f'{c.name}, hallucinated from {own}'
        found[name] = c, Style(colour, colour, 'black')
      label = f'{label}: {METHODS[loaded_run.statistics_options(run).novel]}'
    places = embed([cloud for cloud, _ in found.values()], seed)
    for (cloud, style), where in zip(found.values(), places, strict=True):
      scatter(axes, cloud, where, style)
    shown |= {name: style for name, (_, style) in found.items()}
    axes.set_title(label, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
  _legend(figure, panels[0], shown, 2 if len(runs) == 1 else 4)
  return figure


class Style(NamedTuple):
  """Colours of a cloud.

  Attributes:
    colour: colour of the domain.
    face: face colour of the markers, or 'none'.
    edge: edge colour of the markers.
  """

  colour: str
  face: str
  edge: str


def styles(names: Sequence[str]) -> dict[str, Style]:
  """Returns the style of each domain.

  The styles of three domains are also distinct in grey: the first is dark, the
  second light and the third hollow. After seven domains the colours repeat,
  with hollow and filled markers exchanged.
  """
  found = {}
  for k, name in enumerate(names):
    turn, number = divmod(
      k, 7
    )  # the eighth colour, black, is for novel domains
    colour = canvas.COLOURS[number]
    full = (number % 3 < 2) == (turn % 2 == 0)
    found[name] = Style(colour, colour if full else 'none', colour)
  return found


def scatter(axes, cloud: Cloud, where: np.ndarray, style: Style) -> None:
  """Draws a cloud with a marker per kind.

  Args:
    axes: the panel.
    cloud: features.
    where: places of the features, `[M, 2]`.
    style: colours.
  """
  for kind in np.unique(cloud.kinds):
    axes.scatter(
      *where[cloud.kinds == kind].T,
      s=22,
      facecolors=style.face,
      edgecolors=style.edge,
      linewidths=0.8,
      alpha=0.85,
      marker=MARKERS[kind],
    )


def _legend(figure, axes, shown: dict[str, Style], columns: int) -> None:
  """Adds a legend of domains and of identities below the panels."""
  entries = [
    axes.scatter([], [], s=40, marker='D', c=s.face, edgecolors=s.edge)
    for s in shown.values()
  ]
  entries += [
    axes.scatter([], [], s=30, marker=m, c='none', edgecolors='black')
    for m in MARKERS
  ]
  numbers = [f'identity {k + 1} of a domain' for k in range(len(MARKERS))]
  figure.legend(
    entries,
    [*shown, *numbers],
    fontsize=8,
    loc='outside lower center',
    ncols=columns,
    frameon=False,
    handletextpad=0.1,
  )
