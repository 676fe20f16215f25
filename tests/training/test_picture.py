import numpy as np
import toy_run

from fedreid_jax.evaluation import gallery
from fedreid_jax.figures import retrieval
from fedreid_jax.training import picture

GREEN, ORANGE, WHITE = [0, 158, 115], [213, 94, 0], [255, 255, 255]


def test_frames_of_matches_are_solid_and_others_are_dashed():
  image = np.full((32, 16, 3), 7, np.uint8)
  right, wrong, none = (picture.framed(image, k) for k in (True, False, None))
  # The margin and the frame have one pixel each, a sixteenth of the width.
  for found in (right, wrong, none):
    assert found.shape == (36, 20, 3)
    np.testing.assert_array_equal(found[2:-2, 2:-2], image)
    assert (found[0] == 255).all() and (found[:, -1] == 255).all()
  assert (right[1, 1:-1] == GREEN).all() and (right[1:-1, -2] == GREEN).all()
  dashes = [wrong[1, k].tolist() for k in range(1, 9)]
  assert dashes == 2 * [ORANGE, ORANGE, WHITE, WHITE]
  assert (none[1] == 255).all()


def test_grey_images_are_shown_in_grey():
  image = np.arange(8 * 8, dtype=np.uint8).reshape(8, 8, 1)
  found = picture.framed(image, None)[2:-2, 2:-2]
  assert found.shape == (8, 8, 3)
  np.testing.assert_array_equal(found, np.repeat(image, 3, 2))


def test_a_row_has_a_query_and_the_images_nearest_to_it():
  images = np.stack([np.full((8, 8, 3), k, np.uint8) for k in range(20)])
  found = picture.draw(
    [
      gallery.Ranked(
        3, np.arange(5, 20), np.arange(15.0), np.arange(15) % 2 == 0
      ),
      gallery.Ranked(
        4, np.array([9, 7]), np.arange(2.0), np.array([False, True])
      ),
    ],
    images,
  )
  assert found.shape == (2 * 12, 11 * 12, 3)
  centres = found[6::12, 6::12, 0]
  assert centres.tolist() == [
    [3, *range(5, 15)],
    [4, 9, 7, *[255] * 8],
  ]
  frames = found[1, 13::12].tolist()  # above the nearest images
  assert frames[:2] == [GREEN, ORANGE]


def test_pictures_show_the_lists_of_the_first_model_of_a_target():
  run = toy_run.toy_run()
  target = run.target('')
  features = run.ranked(target.images.images())
  found = picture.Pictures(run.config.evaluation, 2)
  found('client:ash', target, features)
  found('client:birch', target, features)
  (name,) = found.found
  assert name == 'target/client/ash'
  expected = picture.draw(
    retrieval.rank(run, '', 2, picture.SEED), target.images.images()
  )
  np.testing.assert_array_equal(found.found[name], expected)


def test_a_test_without_any_match_has_no_picture():
  run = toy_run.toy_run()
  target = run.target('')
  alone = target.images._replace(
    identities=np.arange(len(target.images.identities), dtype=np.int32)
  )
  features = run.ranked(target.images.images())
  found = picture.Pictures(run.config.evaluation, 2)
  found('global', target._replace(images=alone), features)
  assert found.found == {}
