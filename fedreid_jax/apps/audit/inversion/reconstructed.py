"""Reconstructed images beside the nearest real ones (DFH, figure 5).

The paper shows reconstructed images only. Here each is followed by the images
that are nearest by the judge, with a solid frame around those of the intended
person, or of the domain of the client if no person is intended.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedreid_jax.apps.audit.inversion.attacks import Attempt
from fedreid_jax.apps.audit.inversion.judge import Answers
from fedreid_jax.figures import canvas
from fedreid_jax.figures.canvas import Photo
from fedreid_jax.training.loaded_run import LoadedRun

NEAREST = 2
SHOWN = 16  # images of one attempt; half as many of several

Lines = list[list[Photo | None]]


def draw(
  attempts: Mapping[str, Attempt],
  answers: Mapping[str, Answers],
  run: LoadedRun,
  title: str,
) -> Any:
  """Draws reconstructed images of every attempt with the nearest real ones.

  Args:
    attempts: by their names.
    answers: of the judge, by question.
    run: the attacked run, with the images of all clients.
    title: of the figure.
  """
  num = SHOWN if len(attempts) == 1 else SHOWN // 2
  blocks = []
  for name, attempt in attempts.items():
    nearest = [f'nearest {k + 1}' for k in range(NEAREST)]
    titles = [name.replace(' ', '\n'), *nearest]
    question = 'domain'
    if attempt.labels is not None:
      titles.insert(1, 'real')
      question = 'person'
    lines = _lines(attempt, answers[question].nearest[name], run, num)
    blocks.append((titles, lines))
  # A single attempt has two columns of lines.
  if len(blocks) == 1:
    titles, lines = blocks[0]
    blocks = [(titles, lines[::2]), (titles, lines[1::2])]
  return _side_by_side(blocks, title)


def _lines(
  attempt: Attempt, nearest: np.ndarray, run: LoadedRun, num: int
) -> Lines:
  """Returns a line for each of some images, of all clients in turn.

  A line has the reconstructed image, a real one of the intended person, if any,
  and the nearest ones.
  """
  clients = run.federation.clients
  images = [client.images() for client in clients]
  first = np.cumsum([0, *(client.num_images for client in clients)])
  total = len(attempt.clients)

  def line(k: int) -> list[Photo | None]:
    owner = int(attempt.clients[k])
    person = None if attempt.labels is None else int(attempt.labels[k])

    def named(domain: int, label: int) -> str:
      name = clients[domain].name
      return name if person is None else f'{name} {label}'

    def found(row: int) -> Photo:
      domain = int(np.searchsorted(first, row, 'right')) - 1
      own = row - first[domain]
      label = int(clients[domain].labels[own])
      right = domain == owner and person in (None, label)
      return Photo(images[domain][own], right, named(domain, label))

    photos: list[Photo | None] = [
      Photo(attempt.images.photos[k], None, named(owner, person or 0))
    ]
    if person is not None:
      own = np.flatnonzero(clients[owner].labels == person)[0]
      photos.append(Photo(images[owner][own], None, named(owner, person)))
    return photos + [found(int(row)) for row in nearest[k, :NEAREST]]

  # Evenly spaced, so that every client has lines.
  chosen = np.linspace(0, total - 1, min(num, total)).round().astype(int)
  return [line(int(k)) for k in chosen]


def _side_by_side(blocks: list[tuple[list[str], Lines]], title: str) -> Any:
  """Arranges blocks of lines on one sheet, with space between them."""
  height = max(len(lines) for _, lines in blocks)
  rows: Lines = [[] for _ in range(height)]
  titles, gaps = [], []
  for own, lines in blocks:
    if titles:
      gaps.append(len(titles))
    gaps.append(len(titles) + len(own) - NEAREST)
    titles += own
    for k, row in enumerate(rows):
      row += lines[k] if k < len(lines) else [None] * len(own)
  return canvas.sheet(rows, titles, title, gaps)
