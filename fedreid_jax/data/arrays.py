"""Clients and federations made from arrays, for simulations in Python."""

from collections.abc import Sequence

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.data.federation import Federation, Images


def client_data(
  name: str,
  images: np.ndarray,
  labels: Sequence[int] | np.ndarray,
  cameras: Sequence[int] | np.ndarray | None = None,
  modalities: Sequence[int] | np.ndarray | None = None,
  num_identities: int | None = None,
) -> types.ClientData:
  """Makes a client from arrays.

  >>> import numpy as np
  >>> import fedreid_jax as fr
  >>> images = np.zeros((3, 16, 8, 3), np.uint8)
  >>> client = fr.client_data('entrance', images, [0, 1, 1])
  >>> client.num_images, client.num_identities
  (3, 2)

  Args:
    name: unique name; its hash is the root of the client's random numbers.
    images: uint8 `[M, H, W, ch]`.
    labels: identities from 0, `[M]`.
    cameras: camera numbers `[M]`, by default 0.
    modalities: 0 visible, 1 infrared, `[M]`, by default 0.
    num_identities: number of classes `C`, by default the largest label + 1.

  Raises:
    DataError: for arrays that do not belong together, or labels from C up.
  """
  size = len(images)
  columns = {
    column: np.zeros(size, np.int32)
    if values is None
    else np.asarray(values, np.int32)
    for column, values in (
      ('labels', labels),
      ('cameras', cameras),
      ('modalities', modalities),
    )
  }
  wrong = any(x.shape != (size,) or (x < 0).any() for x in columns.values())
  if not size or images.ndim != 4 or images.dtype != np.uint8 or wrong:
    raise errors.DataError(
      f'images {images.dtype}{list(images.shape)} with '
      + ', '.join(f'{n} {list(x.shape)}' for n, x in columns.items()),
      f'client {name}',
      'give uint8 [M, H, W, ch] and numbers from 0 of shape [M]',
    )
  most = int(columns['labels'].max())
  if num_identities is not None and most >= num_identities:
    raise errors.DataError(
      f'label {most} of num_identities={num_identities}',
      f'client {name}',
      'number the identities from 0, or give a larger num_identities',
    )
  return types.ClientData(
    name=name,
    images=lambda: images,
    num_identities=most + 1 if num_identities is None else num_identities,
    **columns,
  )


def federation(
  clients: Sequence[types.ClientData],
  public: np.ndarray | None,
  mean: Sequence[float] | None,
  std: Sequence[float] | None,
) -> Federation:
  """Makes a federation of clients, without targets.

  Args:
    public: images that the server may use, uint8 `[M, H, W, ch]`.
    mean: mean of each channel, of values in 0..1, by default 0.5.
    std: standard deviation of each channel, by default 0.25.

  Raises:
    DataError: for no clients, two with one name, or images of several shapes.
  """
  # The canonical order of clients.
  ordered = tuple(sorted(clients, key=lambda client: client.name))
  names = {client.name for client in ordered}
  if not names or len(names) < len(ordered):
    raise errors.DataError(
      f'{errors.counted(len(ordered), "client")} with '
      f'{errors.counted(len(names), "name")}',
      'clients',
      'give one or more, each with its own name',
    )
  shapes = {client.images().shape[1:] for client in ordered}
  if public is not None:
    shapes.add(public.shape[1:])
  if len(shapes) > 1:
    raise errors.DataError(
      f'images of shapes {", ".join(map(str, sorted(shapes)))}',
      'clients',
      'resize them to one [H, W, ch]',
    )
  (shape,) = shapes
  return Federation(
    clients=ordered,
    targets=(),
    image_shape=shape,
    mean=tuple([0.5] * shape[-1] if mean is None else mean),
    std=tuple([0.25] * shape[-1] if std is None else std),
    digest='',
    public=None if public is None else _public(public),
  )


def _public(images: np.ndarray) -> Images:
  column = np.zeros(len(images), np.int32)
  return Images('public', lambda: images, column, column, column)
