"""Tests of tracklets against an independent evaluation."""

import numpy as np
import pytest
import toy

from fedreid_jax.data import tracklets
from fedreid_jax.data.federation import Target, Trial
from fedreid_jax.evaluation import evaluator
from fedreid_jax.round import placement

# Frames of eight tracklets; persons and cameras of each.
SIZES = [3, 1, 4, 2, 5, 2, 3, 4]
PEOPLE = [0, 1, 0, 1, 2, 2, 0, 1]
CAMERAS = [0, 0, 1, 1, 0, 1, 0, 1]
QUERIES = [0, 1, 4, 7]


def target(**changes):
  number = np.repeat(np.arange(8), SIZES).astype(np.int32)
  images = toy.toy_images('mall', sum(SIZES))._replace(
    identities=np.repeat(PEOPLE, SIZES).astype(np.int32),
    cameras=np.repeat(CAMERAS, SIZES).astype(np.int32),
    tracklets=number + 20,
  )
  query = np.flatnonzero(np.isin(number, QUERIES))
  gallery = np.flatnonzero(~np.isin(number, QUERIES))
  trial = Trial(
    tracklets.representatives(query, images.tracklets),
    tracklets.representatives(gallery, images.tracklets),
  )
  return Target('mall', images, (trial,), **changes)


def by_hand(parts, same_camera):
  """mAP, rank-1 and mINP by loops over tracklets."""
  model, variables, transforms = parts
  pixels = target().images.images()
  outputs, _ = model.apply(variables, transforms.test(pixels), train=False)
  features, first, vectors = np.asarray(outputs.embedding), 0, []
  for size in SIZES:
    vectors.append(sum(features[first : first + size]) / size)
    first += size
  precision, hits, inverse = [], [], []
  for q in QUERIES:
    ranked = []
    for g in range(len(SIZES)):
      same = PEOPLE[g] == PEOPLE[q] and CAMERAS[g] == CAMERAS[q]
      if g in QUERIES or (same and same_camera):
        continue
      distance = ((vectors[q] - vectors[g]) ** 2).sum()
      ranked.append((distance, PEOPLE[g] == PEOPLE[q]))
    right = [match for _, match in sorted(ranked)]
    places = [k for k, match in enumerate(right, 1) if match]
    if places:
      shares = [n / place for n, place in enumerate(places, 1)]
      precision.append(sum(shares) / len(shares))
      inverse.append(len(places) / places[-1])
      hits.append(right[0])
  return [100 * np.mean(x) for x in (precision, hits, inverse)]


@pytest.mark.parametrize(
  ('protocol', 'same_camera'), [('vcm', True), ('buptcampus', False)]
)
def test_tracklets_are_ranked(parts, protocol, same_camera):
  model, variables, transforms = parts
  run = evaluator.make(
    toy.toy_config().evaluation,
    (target(protocol=protocol),),
    model,
    transforms,
    placement.make_mesh(1),
  )
  (entry,) = run({'global': variables})
  assert (entry['queries'], entry['gallery']) == (4, 4)
  assert entry['protocol'] == protocol
  found = [entry['metrics'][name] for name in ('mAP', 'rank1', 'mINP')]
  np.testing.assert_allclose(found, by_hand(parts, same_camera), rtol=1e-4)


def test_the_order_of_tracklets_and_the_batch_do_not_matter(parts):
  model, variables, transforms = parts
  own = target()
  found = []
  for batch in (3, 64):
    config = toy.replaced(toy.toy_config().evaluation, {'batch': batch})
    run = evaluator.make(
      config, (own,), model, transforms, placement.make_mesh(1)
    )
    found.append(run({'global': variables})[0]['metrics'])
  assert found[0].keys() == found[1].keys()
  for name, value in found[0].items():
    np.testing.assert_allclose(value, found[1][name], rtol=1e-4)


def test_without_tracklets_every_frame_is_ranked(parts):
  model, variables, transforms = parts
  own = target()
  plain = own._replace(images=own.images._replace(tracklets=None))
  rows = np.arange(len(plain.images.identities))
  asks = np.isin(np.repeat(np.arange(8), SIZES), QUERIES)
  plain = plain._replace(trials=(Trial(rows[asks], rows[~asks]),))
  run = evaluator.make(
    toy.toy_config().evaluation,
    (plain,),
    model,
    transforms,
    placement.make_mesh(1),
  )
  (entry,) = run({'global': variables})
  assert (entry['queries'], entry['gallery']) == (13, 11)
