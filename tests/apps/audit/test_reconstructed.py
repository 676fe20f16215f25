import numpy as np
from drawn import written
from matplotlib import colors

from fedreid_jax.apps.audit.inversion import attacks, judge, reconstructed
from fedreid_jax.apps.audit.inversion.reconstruction import Reconstructed
from fedreid_jax.figures import canvas


def attempt(photos, clients, labels=None):
  images = Reconstructed(photos, photos, {})
  return attacks.Attempt(images, np.asarray(clients), labels)


def colour(axes):
  return colors.to_hex(axes.spines['left'].get_edgecolor()).upper()


def test_reconstructed_sheet_of_identities(run, tmp_path):
  photos = run.client('birch').images()
  made = {'identity means': attempt(photos[:3], [1] * 3, np.arange(3))}
  answers = judge.judge(made, run, run)
  figure = reconstructed.draw(made, answers, run, 'title')
  assert len(figure.axes) == 2 * 8  # two rows of two, the last place empty
  assert sum(bool(axes.get_images()) for axes in figure.axes) == 12
  captions = [axes.get_xlabel() for axes in figure.axes]
  assert captions[:3] == ['birch 0'] * 3 and captions[4:7] == ['birch 1'] * 3
  assert colour(figure.axes[2]) == canvas.RIGHT
  np.testing.assert_array_equal(
    figure.axes[1].get_images()[0].get_array(), photos[0, :, :, 0]
  )
  written(figure, tmp_path / 'reconstructed.png')


def test_reconstructed_sheet_of_statistics(run, tmp_path):
  birch, ash = run.client('birch'), run.client('ash')
  both = np.concatenate([birch.images()[:1], ash.images()[:1]])
  made = {
    'DFS': attempt(both, [1, 0]),
    'permuted DFS': attempt(both[::-1], [1, 0]),
    'real feature': attempt(both[:1], [1], np.arange(1)),
  }
  answers = judge.judge(made, run, run)
  figure = reconstructed.draw(made, answers, run, 'title')
  rows = np.asarray(figure.axes).reshape(2, 10)
  captions = [[axes.get_xlabel() for axes in row] for row in rows]
  assert captions[0][:2] == ['birch', 'birch']
  assert captions[0][3:5] == ['birch', 'ash']
  assert captions[1][3:5] == ['ash', 'birch']
  assert captions[0][6:9] == ['birch 0'] * 3
  frames = [colour(rows[0, place]) for place in (1, 4, 8)]
  assert frames == [canvas.RIGHT, canvas.WRONG, canvas.RIGHT]
  assert not any(axes.get_images() for axes in rows[1, 6:])
  written(figure, tmp_path / 'reconstructed.png')


def test_a_sheet_shows_all_clients(run):
  """Of more images than there are rows, some of every client."""
  photos = np.repeat(run.client('birch').images()[:1], 40, axis=0)
  owners = np.repeat(np.arange(4), 10)
  made = {
    'DFS': attempt(photos, owners),
    'real feature': attempt(photos[:1], [1], np.arange(1)),
  }
  answers = judge.judge(made, run, run)
  figure = reconstructed.draw(made, answers, run, 'title')
  rows = np.asarray(figure.axes).reshape(8, 7)
  shown = [row[0].get_xlabel() for row in rows]
  assert shown == [
    n for n in ('ash', 'birch', 'cedar', 'dogwood') for _ in 'ab'
  ]
