"""The contexts of the components at the server in one round."""

import functools
from typing import Any, NamedTuple

import jax

from fedreid_jax.core import prng, trees, types
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method import contexts
from fedreid_jax.round.settings import Settings


class Groups(NamedTuple):
  """The groups of the uploads of a round, one for each server model.

  Attributes:
    of_uploads: group of each upload, int32 `[K]`.
    members: valid uploads of each group, bool `[G, K]`.
    sizes: weights by number of images, `[G, K]`.
    start: the model of each group before the aggregation, `[G, ...]`.
  """

  of_uploads: Array
  members: Array
  sizes: Array
  start: Flat


class ServerContexts:
  """Builds the contexts of the server hooks of all components."""

  def __init__(
    self,
    settings: Settings,
    server: types.ServerState,
    uploads: types.Upload,
    valid: Array,
    round_: Array,
    public: Array,
    seed: Array,
    summed: bool,
  ):
    """Collects the fields that the contexts of all components have.

    Args:
      settings: settings of the local round.
      server: state of the server before the round.
      uploads: uploads of the cohort, `[K, ...]`.
      valid: whether each upload is valid, bool `[K]`.
      round_: global round.
      public: images of the public set.
      seed: `prng.data` of the run's seed.
      summed: whether the server has sums and no uploads; then to read
        `ctx.uploaded` is an error.
    """
    self._summed = summed
    self._key = prng.key(seed, Stream.SERVER, round_)
    self._common: dict[str, Any] = {
      'index': uploads.index,
      'valid': valid,
      'uploaded': uploads.shared,
      'num_examples': uploads.num_examples,
      'num_steps': uploads.num_steps,
      'previous': server.shared,
      'public': public,
      'model': settings.model,
      'train_transform': settings.train_transform,
      'test_transform': settings.test_transform,
      'complete': functools.partial(_complete, settings),
      'round': round_,
    }

  def of_uploads(self, name: str) -> contexts.ServerCtx:
    """Returns the context of a component before clients have groups."""
    return contexts.ServerCtx(**self._fields(name))

  def of_groups(
    self, name: str, groups: Groups, valid: Array
  ) -> contexts.AggregationCtx:
    """Returns the context of a component after clients have groups.

    Args:
      name: name of the component.
      groups: groups of the uploads.
      valid: which uploads are used, bool `[K]`. A `Summation` may lose some of
        those that the constructor received as valid.
    """
    fields: dict[str, Any] = self._fields(name) | {'valid': valid}
    return contexts.AggregationCtx(
      **fields,
      members=groups.members,
      start=groups.start,
    )

  def _fields(self, name: str) -> dict[str, Any]:
    key = jax.random.fold_in(self._key, prng.component_uid(name))
    own: dict[str, Any] = {'key': key}
    if self._summed:
      own['uploaded'] = contexts.NoUploads(name)
    return self._common | own


def _complete(settings: Settings, shared: Flat) -> Flat:
  # Only shapes are needed, so that the network is not initialised.
  shapes = jax.eval_shape(settings.model.init, jax.random.key(0))
  return trees.zeros(shapes) | shared
