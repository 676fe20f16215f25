"""Features in the plane: of domains (DFH, figure 6) and of persons.

As in the paper, a panel of `draw` shows the features of three random identities
of each training domain under the final model of the server, and the features of
a novel domain that the method of the run hallucinates from the images of one
domain. Colours are domains and markers are identities. The paper compares three
methods: Dirichlet-MixUp and Feature-MixUp of hallucinated features, and DFH
(`dfh.novel` is 'dirichlet_mixup', 'feature_mixup' and 'dirichlet'). Here every
run has a panel.

Deviations: the paper does not say whether its panels share one model; here each
panel has the model of its run. The paper does not say how often statistics are
drawn for the figure; here they are drawn once for all images, which shows the
effect of the method on the pairwise structure of a batch. The features are
those that the statistics describe (`dfh.space`). A run without a novel domain
(`dfh.novel` is 'none') shows features of the other domains instead, and a run
without DFH shows only real features.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData
from fedreid_jax.figures import canvas
from fedreid_jax.losses import hallucination
from fedreid_jax.models.layers import norm
from fedreid_jax.training import loaded_run
from fedreid_jax.training.loaded_run import LoadedRun

IDENTITIES = 3  # of a domain, as in the paper
IMAGES = 24  # largest number per identity, or per person and modality
PERSONS = 8  # as many as there are colours
BATCH = 120  # images whose moments normalise features
NOVEL = 'novel domain'
# The first two denote modalities in `persons`.
MARKERS = ('o', '^', 's')
PERPLEXITY = 30


class Cloud(NamedTuple):
  """The features of one domain or person, by its name."""

  name: str
  features: np.ndarray  # `[M, D]`
  kinds: np.ndarray  # number of the marker of each feature, `[M]`


def chosen(client: ClientData, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Chooses images of three persons: (rows, person 0, 1 or 2), `[M]` each."""
  rng = np.random.default_rng(seed)
  persons = rng.permutation(np.unique(client.labels))[:IDENTITIES]
  own = [np.flatnonzero(client.labels == person) for person in persons]
  rows = [np.sort(rng.permutation(r)[:IMAGES]) for r in own]
  kinds = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
  return np.concatenate(rows), kinds


def real(run: LoadedRun, seed: int) -> list[Cloud]:
  """Returns features of the chosen images of every client."""
  clouds = []
  for client in run.federation.clients:
    rows, kinds = chosen(client, seed)
    clouds.append(Cloud(client.name, _features(run, client, rows), kinds))
  return clouds


def _features(
  run: LoadedRun, client: ClientData, rows: np.ndarray
) -> np.ndarray:
  return run.features(
    client.images()[rows],
    loaded_run.statistics_of(run).space,
    client.modalities[rows],
  )


def hallucinated(run: LoadedRun, source: str, seed: int) -> list[Cloud]:
  """Features of a novel domain, hallucinated from those of a client.

  If the method has no novel domain (`dfh.novel` is 'none'), the result has a
  cloud for each other client. Without a source, it is the first client; the
  clients of the method must send statistics of domains.
  """
  statistics, clients = loaded_run.statistics_of(run), run.federation.clients
  own = run.client(source)
  index = [client.name for client in clients].index(own.name)
  rows, kinds = chosen(own, seed)
  batch = np.random.default_rng(seed).permutation(own.num_images)[:BATCH]
  both = jnp.asarray(_features(run, own, np.concatenate([rows, batch])))
  feature, dim = both[: len(rows)], both.shape[1]
  # As in the training, the moments are those of a random batch, not of the few
  # chosen images.
  in_batch = jnp.arange(len(both)) >= len(rows)
  normalised, *_ = norm.standardize(
    both, jnp.ones(dim), jnp.zeros(dim), in_batch
  )
  normalised = normalised[: len(rows)]

  # The mean, the variance and the weights of the domains are drawn once for all
  # images, as for a batch of the training, so that one affine map with a factor
  # per channel gives all features of DFH.
  draw_key, novel_key = jax.random.split(jax.random.key(seed))
  drawn = statistics.draw(draw_key, loaded_run.domain_statistics(run))
  if statistics.novel is None:
    every = hallucination.per_domain(drawn.means, drawn.variances, normalised)
    return [
      Cloud(client.name, np.asarray(features), kinds)
      for client, features in zip(clients, every, strict=True)
      if client.name != own.name
    ]
  novel = statistics.novel(
    novel_key, drawn, feature, normalised, jnp.int32(index)
  )
  return [Cloud(NOVEL, np.asarray(novel), kinds)]


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

  `source` is the client whose features are transformed, '' for the first.
  """
  figure, panels = canvas.row(len(runs), 4.2, 4.8)
  names = {c.name: None for _, run in runs for c in run.federation.clients}
  by_domain = styles(list(names))
  shown: dict[str, Style] = {}
  for axes, (label, run) in zip(panels, runs, strict=True):
    found = {c.name: (c, by_domain[c.name]) for c in real(run, seed)}
    if loaded_run.statistics_sender(run):
      own = run.client(source).name
      for c in hallucinated(run, source, seed):
        colour = by_domain[c.name].colour if c.name in by_domain else 'black'
        name = f'{c.name}, hallucinated from {own}'
        found[name] = c, Style(colour, colour, 'black')
      label = f'{label}: {loaded_run.statistics_of(run).title}'
    places = embed([cloud for cloud, _ in found.values()], seed)
    for (cloud, style), where in zip(found.values(), places, strict=True):
      _scatter(axes, cloud, where, style)
    shown |= {name: style for name, (_, style) in found.items()}
    axes.set_title(label, fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
  _legend(figure, panels[0], shown, 2 if len(runs) == 1 else 4)
  return figure


class Style(NamedTuple):
  """Colours of a cloud: of its domain, and of faces and edges of markers."""

  colour: str
  face: str  # or 'none'
  edge: str


def styles(names: Sequence[str]) -> dict[str, Style]:
  """The style of each domain.

  The styles of three domains are also distinct in grey: the first is dark, the
  second light and the third hollow. After seven domains the colours repeat,
  with hollow and filled markers exchanged.
  """
  found = {}
  for k, name in enumerate(names):
    # The eighth colour, black, is for novel domains.
    turn, number = divmod(k, 7)
    colour = canvas.COLOURS[number]
    full = (number % 3 < 2) == (turn % 2 == 0)
    found[name] = Style(colour, colour if full else 'none', colour)
  return found


def _scatter(axes: Any, cloud: Cloud, where: np.ndarray, style: Style) -> None:
  """Draws a cloud at places `[M, 2]`, with a marker per kind."""
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


def _legend(
  figure: Any, axes: Any, shown: dict[str, Style], columns: int
) -> None:
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


def persons(run: LoadedRun, target: str = '', seed: int = 0) -> list[Cloud]:
  """Returns a cloud of ranked features for each of some persons of a test."""
  own = run.target(target).images
  rng = np.random.default_rng(seed)
  # The draw depends only on the seed and the test, so that all runs side by
  # side show the same images.
  everyone = own.people
  chosen = []
  for person in np.sort(rng.permutation(everyone)[:PERSONS]):
    for kind in np.unique(own.modalities):
      rows = (own.identities == person) & (own.modalities == kind)
      drawn = rng.permutation(np.flatnonzero(rows))[:IMAGES]
      chosen += [(int(row), int(person)) for row in np.sort(drawn)]
  rows, owners = np.asarray(chosen).T
  features = run.ranked(own.images()[rows], own.modalities[rows])
  return [
    Cloud(
      f'person {person}',
      features[owners == person],
      own.modalities[rows[owners == person]],
    )
    for person in np.unique(owners)
  ]


def draw_persons(
  runs: Sequence[tuple[str, LoadedRun]],
  target: str = '',
  seed: int = 0,
  panels: Any = None,
) -> Any:
  """Draws some persons of a test, a panel per run (L2RW, figure 3).

  Points are the ranked features, with a colour per person and a marker per
  modality. Runs show the same images. Features that are good for retrieval
  separate persons and not modalities. Without a target, the first target of
  each run is shown; without panels, the figure is new.
  """
  if panels is None:
    _, panels = canvas.row(len(runs), 4.2, 4.4)
  for axes, (label, run) in zip(panels, runs, strict=True):
    shown = persons(run, target, seed)
    for k, (cloud, where) in enumerate(
      zip(shown, embed(shown, seed), strict=True)
    ):
      colour = canvas.COLOURS[k % len(canvas.COLOURS)]
      _scatter(axes, cloud, where, Style(colour, colour, 'none'))
    axes.set_title(f'{label}: persons of {run.target(target).name}', fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    kinds = np.unique(np.concatenate([c.kinds for c in shown]))
    if len(kinds) > 1:
      _legend_of_modalities(axes, kinds)
  return panels[0].figure


def _legend_of_modalities(axes: Any, kinds: np.ndarray) -> None:
  marks = [
    axes.scatter([], [], s=24, color='grey', marker=MARKERS[kind])
    for kind in kinds
  ]
  names = ['visible', 'infrared']
  axes.legend(
    marks,
    [names[kind] for kind in kinds],
    fontsize=8,
    loc='upper center',
    bbox_to_anchor=(0.5, 0),
    ncols=2,
    frameon=False,
  )
