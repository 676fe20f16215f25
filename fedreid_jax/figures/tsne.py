"""Features in the plane: domains, and features hallucinated of them.

DFH's figure 6. Points are features before the neck, where domains differ. Of a
method that hallucinates a second panel shows, in the same plane, what the first
client makes of its images: features of every other client's domain, and of a
domain nobody has.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import moments
from fedreid_jax.figures import canvas
from fedreid_jax.losses import hallucination
from fedreid_jax.trained import Trained

SAMPLE = 120  # images of a domain
DRAWS = 30  # of statistics, each for an equal share of the images
MARKERS = ('o', '^')  # visible, infrared
PERPLEXITY = 30
NOVEL = 'a new domain'


class Cloud(NamedTuple):
  """Features of one domain.

  Attributes:
    domain: its name.
    features: `[M, D]`.
    modalities: 0 visible, 1 infrared, `[M]`.
  """

  domain: str
  features: np.ndarray
  modalities: np.ndarray


def real(run: Trained, seed: int) -> list[Cloud]:
  """Returns features of some images of every client and target."""
  federation = run.federation
  clouds = {}
  tests = [t.images for t in federation.targets]
  for domain in (*federation.clients, *tests):
    if domain.name in clouds:  # a domain that is trained and tested on
      continue
    rows = _sample(len(domain.modalities), seed)
    found = run.features(domain.images()[rows], 'feature')
    clouds[domain.name] = Cloud(domain.name, found, domain.modalities[rows])
  return list(clouds.values())


def _sample(num: int, seed: int) -> np.ndarray:
  rows = np.random.default_rng(seed).permutation(num)[:SAMPLE]
  return np.sort(rows)


def hallucinated(run: Trained, seed: int) -> list[Cloud]:
  """Returns what the first client hallucinates: other domains, then a new one.

  The statistics are those that the server kept, or, where the configuration
  has other clients than they are of, those of the images under the model.

  Args:
    run: of a method with the component 'dfh'.
    seed: of images and draws.
  """
  clients, config = run.federation.clients, run.config.dfh
  own, num = clients[0], len(clients)
  rows = _sample(own.num_images, seed)
  feature, embedding = (
    jnp.asarray(run.features(own.images()[rows], which))
    for which in ('feature', 'embedding')
  )
  alpha = jnp.broadcast_to(jnp.asarray(config.alpha, jnp.float32), (num,))
  every, novel = [], []
  dfs = statistics(run)
  key = jax.random.key(seed)
  for number, part in enumerate(np.array_split(np.arange(len(rows)), DRAWS)):
    draw_key, novel_key = jax.random.split(jax.random.fold_in(key, number))
    means, variances, _ = hallucination.draw(
      draw_key, dfs, config.negative_variance
    )
    every.append(hallucination.per_domain(means, variances, embedding[part]))
    if config.novel != 'none':
      novel.append(
        hallucination.novel_domain(
          novel_key,
          config.novel,
          means,
          variances,
          feature[part],
          embedding[part],
          jnp.int32(0),
          alpha,
          config.mix_weights,
        )
      )
  found = np.concatenate(every, axis=1)
  clouds = [
    Cloud(client.name, found[k], own.modalities[rows])
    for k, client in enumerate(clients)
    if k
  ]
  if novel:
    made = np.concatenate(novel)
    clouds.append(Cloud(NOVEL, made, own.modalities[rows]))
  return clouds


def statistics(run: Trained) -> jax.Array:
  """Returns the DFS of every client, `[N, 4, D]`."""
  kept = run.slots.get('dfh')
  clients = run.federation.clients
  if kept is not None and len(kept) == len(clients):
    return jnp.asarray(kept)
  return jnp.stack([moments.statistics(run.moments(c)) for c in clients])


def embed(clouds: Sequence[Cloud], seed: int) -> list[np.ndarray]:
  """Maps features of all clouds together to the plane by t-SNE, `[M, 2]` each.

  Raises:
    ConfigError: without scikit-learn.
  """
  try:
    from sklearn import manifold
  except ImportError as error:
    raise errors.ConfigError(
      'scikit-learn is not installed', 'pictures', canvas.MISSING
    ) from error
  points = np.concatenate([c.features for c in clouds])
  mapper = manifold.TSNE(
    perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
    init='pca',
    random_state=seed,
  )
  places = mapper.fit_transform(points)
  return np.split(places, np.cumsum([len(c.features) for c in clouds])[:-1])


def draw(run: Trained, label: str, seed: int = 0) -> Any:
  """Draws the features of a run's domains.

  Args:
    run: with the model.
    label: of the run.
    seed: of images, draws and t-SNE.
  """
  shown = real(run, seed)
  made = hallucinated(run, seed) if 'dfh' in run.config.components else []
  places = embed([*shown, *made], seed)
  # After seven domains colours come again, hollow; black is of no domain.
  styles = [(c, full) for full in (True, False) for c in canvas.COLOURS[:7]]
  style = {
    cloud.domain: styles[k % len(styles)] for k, cloud in enumerate(shown)
  } | {NOVEL: ('black', True)}
  figure = canvas.new(4.6 * (1 + bool(made)) + 0.4, 4.8)
  panels = figure.subplots(1, 1 + bool(made), squeeze=False)[0]
  panels[0].set_title(f'{label}: features', fontsize=10)
  for cloud, where in zip(shown, places, strict=False):
    for panel, alpha in zip(panels, (0.8, 0.15), strict=False):
      _scatter(panel, cloud, where, style[cloud.domain], alpha)
  if made:
    own = run.federation.clients[0].name
    panels[1].set_title(f'hallucinated from {own}', fontsize=10)
    for cloud, where in zip(made, places[len(shown) :], strict=True):
      _scatter(panels[1], cloud, where, style[cloud.domain], 0.9)
  for panel in panels:
    panel.set_xticks([])
    panel.set_yticks([])
    _legend(panel)
  return figure


def _scatter(axes, cloud: Cloud, where, style, alpha: float) -> None:
  """Draws a cloud; it has a line in the legend unless it is faint."""
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
