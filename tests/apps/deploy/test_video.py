"""Frames of videos that the test draws."""

import sys

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.apps.deploy import video

pytest.importorskip('cv2', reason="pip install '.[video]'")

import videos


def levels(found):
  return [round(np.asarray(one.image).mean() / 10) for one in found]


@pytest.mark.parametrize('name', ['a.avi', 'an umbrella é %03d.AVI', 'b.mkv'])
def test_frames_have_their_numbers_and_times(tmp_path, name):
  path = videos.write(tmp_path / name.lower(), count=7)
  path = path.rename(tmp_path / name)
  found = [*video.frames(path, every=3)]
  assert [one.number for one in found] == levels(found) == [0, 3, 6]
  times = [one.seconds for one in found]
  np.testing.assert_allclose(times, [0, 0.3, 0.6], atol=1e-3)
  assert found[0].image.size == videos.SIZE and found[0].image.mode == 'RGB'
  assert video.header(path) == (7, 10.0)


def test_colours_are_red_green_and_blue(tmp_path):
  pixels = np.zeros((48, 64, 3), np.uint8)
  pixels[:, :32] = (250, 0, 0)
  path = videos.write(tmp_path / 'a.avi', 1, draw=lambda k: pixels)
  (one,) = video.frames(path)
  red, green, blue = one.image.getpixel((8, 8))
  assert red > 200 and max(green, blue) < 50


def test_a_video_that_is_cut_off_gives_its_first_frames(tmp_path):
  path = videos.write(tmp_path / 'a.avi', count=25)
  data = path.read_bytes()
  path.write_bytes(data[: data.index(b'00dc', len(data) // 2)])
  found = []
  with pytest.raises(video.CutOff, match=r'all after frame \d+ of 25'):
    for one in video.frames(path):
      found.append(one)
  assert 1 < len(found) < 15 and levels(found) == [*range(len(found))]


@pytest.mark.parametrize(
  'content, reason',
  [
    (b'', 'empty file'),
    (b'RIFF' + bytes(400), 'no video'),
    (b'#EXTM3U\nhttp://127.0.0.1/a.ts\n', 'no video'),
  ],
)
def test_files_that_are_no_videos(tmp_path, capfd, content, reason):
  path = tmp_path / 'a.avi'
  path.write_bytes(content)
  with pytest.raises(ValueError, match=reason):
    next(video.frames(path))
  assert capfd.readouterr() == ('', '')


def test_frames_that_are_too_large(tmp_path):
  path = videos.write(tmp_path / 'a.avi')
  with pytest.raises(ValueError, match='64x48 pixels, more than max_pixels=99'):
    video.header(path, max_pixels=99)


def test_without_opencv_the_extra_is_named(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'cv2', None)
  with pytest.raises(errors.ConfigError) as info:
    video.header(tmp_path / 'a.avi')
  assert "pip install 'fedreid_jax[video]'" in info.value.line()


@pytest.mark.parametrize(
  'seconds, text',
  [(0, '0:00:00.0'), (79.96, '0:01:20.0'), (7325.4, '2:02:05.4')],
)
def test_times_of_a_clock(seconds, text):
  assert video.clock(seconds) == text
