"""`examples/real_clip.sh` on a drawn clip."""

import csv
import functools
from pathlib import Path

import commands
import numpy as np
import pytest
from PIL import Image

import fedreid_jax as fr

SCRIPT = Path(__file__).parents[1] / 'examples' / 'real_clip.sh'
# Writes its arguments in a line, and two persons where `embed` would.
RECORDER = """#!/usr/bin/env bash
printf '%s\\t' "$@" >> "$CALLS"; echo >> "$CALLS"
for word in "$@"; do
  case $word in
    --crops=*) mkdir -p "${word#*=}"
      printf 'crop,score\\n"a,b-0.png",0.7\\nc.png,0.65\\n' \\
        > "${word#*=}/boxes.csv" ;;
  esac
done
"""


@pytest.fixture
def script(tmp_path):
  """`(*arguments, program, **variables)` runs the script."""
  return functools.partial(commands.launch_script, SCRIPT, tmp_path)


def test_the_commands_of_a_video(script, tmp_path):
  calls, work = tmp_path / 'calls', tmp_path / 'w x'
  video = tmp_path / 'a clip, b.avi'
  video.touch()
  code, _, err = script(
    *(video, work, '--k=3'), program=RECORDER, CALLS=calls, WEIGHTS='some'
  )
  assert code == 0, err
  embed, search = (
    line.split('\t')[:-1] for line in calls.read_text().splitlines()
  )
  out = work / 'a clip, b.avi'
  assert embed == [
    *('embed', '--weights=some', f'--images={video}', '--every=3'),
    *('--detect=hog', f'--crops={out}/persons', f'--out={out}/vectors.npy'),
  ]
  # The person of the best score.
  assert search == [
    *('search', '--weights=some', f'--gallery={out}/vectors.npy'),
    *(f'--query={out}/persons/a,b-0.png', f'--out={out}/search.html'),
    *('--apart=5', '--k=3'),
  ]
  # With vectors, nothing is embedded again.
  (out / 'vectors.json').touch()
  calls.unlink()
  code, _, err = script(
    *(video, work), program=RECORDER, CALLS=calls, QUERY='q.png', RUN='r'
  )
  assert code == 0, err
  assert calls.read_text().split('\t')[:4] == [
    *('search', '--workdir=r', f'--gallery={out}/vectors.npy', '--query=q.png')
  ]


@pytest.mark.parametrize(
  'words, code, message',
  [
    ((), 2, 'usage: real_clip.sh VIDEO WORKDIR'),
    (('none.avi', 'work'), 3, "error[3]: no file VIDEO='none.avi'"),
  ],
)
def test_mistakes_are_one_line(script, words, code, message):
  status, out, err = script(*words, program='exit 1')
  assert (status, out) == (code, '')
  assert err.startswith(message) and len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_drawn_clip_becomes_a_page(script, tmp_path):
  pytest.importorskip('cv2', reason="pip install '.[video]'")
  import videos

  # A person in red leaves and comes back; one in blue stays.
  red, blue = (200, 30, 30), (30, 60, 200)
  places = [(20 + 8 * k, red) for k in range(4)]
  places += [(300, blue)] * 3 + [(60 + 8 * k, red) for k in range(4)]
  video = videos.write(
    tmp_path / 'drawn clip.avi',
    len(places),
    rate=1.0,
    draw=lambda k: videos.walkers([places[k]]),
  )
  fields = {
    **{'data.height': 32, 'data.width': 16, 'model.features': (4, 8)},
    **{'local.steps': 1, 'evaluation.every': 1, 'data.identities': 4},
    **{'data.target_identities': 4, 'execution.devices': 1},
  }
  fr.train(fr.load_config('fedpav:smoke', fields, rounds=1), tmp_path / 'run')
  code, out, err = script(
    video, tmp_path / 'work', RUN=tmp_path / 'run', EVERY=1, APART=3
  )
  assert code == 0, out + err
  folder = tmp_path / 'work' / video.name
  with (folder / 'paths.csv').open(newline='') as file:
    rows = [*csv.DictReader(file)]
  times = {float(row['time']) for row in rows}
  assert len(times) > 5 and times <= {*map(float, range(len(places)))}
  page = (folder / 'search.html').read_text()
  assert (
    page.count('data:image/jpeg') > 2 and 'drawn clip.avi at 0:00:0' in page
  )
  with Image.open(folder / 'persons' / rows[0]['path']) as image:
    colours = np.asarray(image).reshape(-1, 3)
  assert (np.abs(colours - red).sum(1) < 60).mean() > 0.05
