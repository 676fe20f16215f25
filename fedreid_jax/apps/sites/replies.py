"""Converts the replies of sites to the uploads of a cohort."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec, shapes
from fedreid_jax.core import types
from fedreid_jax.core.types import Tree
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.devices import transfer

SCALARS = 'num_examples', 'num_steps', 'finite'


class Replies:
  """Checks replies by the shapes of a method, and stacks them to uploads."""

  def __init__(
    self,
    algorithm: Algorithm,
    variables: types.Flat,
    num_sites: int,
    image_shape: tuple[int, ...],
    plan_shape: tuple[int, int],
    pass_batch: int,
  ):
    """Finds the shapes of replies by tracing; nothing is run.

    Args:
      algorithm: a federated method.
      variables: of the model.
      num_sites: `N`.
      image_shape: `(H, W, ch)`.
      plan_shape: `(S, B)` of the longest round.
      pass_batch: images of one step of a pass over all images.
    """
    prepared, upload, sums = shapes.replies(
      algorithm,
      shapes.broadcast(algorithm, variables, num_sites, image_shape),
      image_shape,
      plan_shape,
      pass_batch,
    )
    scalars = {name: getattr(upload, name) for name in SCALARS}
    self._like: dict[str, Tree] = {
      codec.PREPARE: scalars | {'messages': prepared.messages},
      codec.TRAIN: scalars
      | {
        'messages': upload.messages,
        'shared': upload.shared,
        'sums': sums,
        'images': jax.ShapeDtypeStruct((), np.int32),
      },
    }
    self._shared: Tree = upload.shared

  def read(self, name: str, message: codec.Message) -> Any:
    """Returns the tree of a reply.

    Raises:
      IntegrityError: for a reply of another site, or one whose arrays are not
        those of the method.
    """
    where = f'site {name}'
    if message.kind not in self._like or message.fields.get('name') != name:
      raise errors.IntegrityError(
        'an answer of another site or to another message',
        where,
        'start the site with the name that it had',
      )
    return codec.fit(message.arrays, self._like[message.kind], where)

  def stacked(
    self, found: dict[int, Any], kind: str, size: int
  ) -> tuple[types.Upload, dict[str, Any]]:
    """Returns the uploads of a cohort, `[K, ...]`, and the other values.

    Args:
      found: replies of one kind by the canonical index of the site.
      kind: of the replies.
      size: `K`.

    Returns:
      (uploads, `sums` of metrics and number of `images`), on the host.
    """
    # Sites that have not arrived are rows of zeros with the index -1 at the
    # end. In canonical order, so that sums do not depend on who answers first.
    order, absent = sorted(found), size - len(found)
    rows = [*(found[k] for k in order), *[_zeros(self._like[kind])] * absent]
    whole = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    # Before round 0 no site sends its model, but an upload has one.
    if 'shared' not in whole:
      whole['shared'] = transfer.copies(_zeros(self._shared), size)
    index = jnp.asarray([*order, *[-1] * absent], jnp.int32)
    rest = {name: whole.pop(name, {}) for name in ('sums', 'images')}
    return types.Upload(index=index, **whole), rest


def _zeros(like: Tree) -> Any:
  return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
