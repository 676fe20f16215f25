"""Tracks and scores of `benchmarks.real_clip`, on boxes made by hand."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import tracks as track_lib
from benchmarks.tracks import Seen

# Walks of two persons of 20 x 60 pixels, who stay apart.
APART = [(4 * k, 300 - 4 * k) for k in range(20)]


def frames(walks, step=0.5):
  """Persons at the left edges of `walks`, one tuple a frame; None is missed."""
  return [
    [
      Seen(f'{who}-{k:02}', step * k, np.array([x, 0, x + 20, 60.0]))
      for who, x in zip('ab', place, strict=True)
      if x is not None
    ]
    for k, place in enumerate(walks)
  ]


def people(track):
  return {one.name[0] for one in track}


def test_persons_who_stay_apart_are_two_tracks():
  found = track_lib.tracks(frames(APART))
  assert [len(one) for one in found] == [20, 20]
  assert [people(one) for one in found] == [{'a'}, {'b'}]


@pytest.mark.parametrize('missed, count', [(2, 1), (4, 2)])
def test_a_person_may_be_missed_for_some_frames(missed, count):
  # Someone stands still, and somebody else is always seen.
  walks = [(100, 300)] * 20
  walks[5 : 5 + missed] = [(None, 300)] * missed
  found = [x for x in track_lib.tracks(frames(walks)) if people(x) == {'a'}]
  assert len(found) == count


def test_tracks_end_where_two_persons_meet():
  walks = [(6 * k, 120 - 6 * k) for k in range(20)]
  found = track_lib.tracks(frames(walks))
  assert all(len(people(one)) == 1 for one in found)
  assert len(found) > 2


def test_scores_follow_from_the_vectors():
  found = [x for x in track_lib.tracks(frames(APART)) if track_lib.is_long(x)]
  clip = track_lib.chosen(Path('.'), found)
  names = [path.name for path in clip.paths]
  assert (
    max(n for n, q in zip(names, clip.is_first, strict=True) if q) == 'b-06'
  )
  assert clip.together.all() and len(found) == 2
  known = np.eye(2)[clip.tracks]
  for line in track_lib.scored('known', clip, known):
    assert line[2:] == ['100.0 ± 0.0', '100.0'] * 2
  wrong = np.where(clip.is_first[:, None], known[:, ::-1], known)
  for line in track_lib.scored('wrong', clip, wrong):
    assert line[3] == '0.0'
  # A person who was never in a frame with the other one is not compared.
  apart = clip._replace(together=np.eye(2, dtype=bool))
  for line in track_lib.scored('wrong', apart, wrong):
    assert line[2:] == ['100.0 ± 0.0', '100.0', line[4], '0.0']


def test_labels_are_of_the_track_at_a_point(tmp_path):
  """The first person leaves and comes back, and is found again."""
  walks = [(0, 300)] * 10 + [(None, 300)] * 6 + [(100, 300)] * 10
  found = [x for x in track_lib.tracks(frames(walks)) if track_lib.is_long(x)]
  path = tmp_path / 'labels.csv'
  path.write_text('time,x,y,person\n2,10,30,7\n10,110,30,7\n3,305,9,8\n')
  people = track_lib.labelled(path, found)
  assert sorted(people) == [7, 7, 8]
  clip = track_lib.chosen(Path('.'), found, people)
  known = np.eye(9)[people[clip.tracks]]
  assert track_lib.scored('known', clip, known)[0][4:] == [
    '100.0 ± 0.0',
    '100.0',
  ]
  # Images of the own track do not count.
  own = np.eye(3)[clip.tracks]
  assert track_lib.scored('own', clip, own)[0][5] != '100.0'
