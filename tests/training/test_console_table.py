"""Tables in a terminal of 80, 100 and 140 columns, and in a file."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap

import pytest
from rich import console

from fedreid_jax.training.reports import console_table

PROGRAM = textwrap.dedent("""
  import pathlib, sys, types
  from rich import console
  from fedreid_jax.apps.deploy.commands import search
  from fedreid_jax.apps.papers import comparison
  from fedreid_jax.training.reports import console_table
  from fedreid_jax.training.files import recorder

  record = recorder.Recorder(pathlib.Path(sys.argv[1]), 20)
  metrics = {'mAP': 14.0625, 'mAP_std': 1.125, 'mINP': 3.21, 'rank1': 100.0,
             'rank5': 100.0, 'rank10': 100.0}
  one = {'protocol': 'cuhk03_labeled', 'direction': 'infrared to visible',
         'model': 'client:depot_infrared, best', 'round': 20,
         'metrics': metrics, 'queries': 2210, 'gallery': 17661,
         'invalid_queries': 0, 'distance': 'euclidean'}
  record.evaluations('fedpav+dfh', [
    one | {'target': name} for name in ('market1501', 'msmt17_validation')],
    ['warning: the last round is worse than an untrained model'])
  record.table('Clients', ['client', 'images', 'identities', 'cameras',
    'visible', 'infrared'], [['plaza', '1234567', '751', '6', '1234567', '0'],
    ['campus', '9', '3', '6', '9', '0']], ('cameras', 'infrared'))
  hit = types.SimpleNamespace(name='gallery/' + 'x' * 90 + '.jpg',
                              distance=0.98765, same=True)
  search._print([types.SimpleNamespace(query='query.jpg', hits=[hit])])
  screen = console.Console(highlight=False)
  console_table.show(screen, 'compared with fedpav', comparison.COLUMNS, [
    ['fedpav+mine.power_rule', 'market1501', '14.1', '21.7',
     '+7.6 [+5.1, +10.2]', '2.1', '5']], ('seeds',), [comparison.ABOUT])
  console_table.show(screen, 'Market-1501: found / published',
    ['split', 'images', 'identities', 'cameras'],
    [['train', '12,936 / 12,936', '751 / 751', '6 / 6']])
  console_table.markdown('# Sweep\\n\\n| label | target | mAP | seconds |\\n'
    '| --- | --- | --- | --- |\\n| optim.lr=0.0125,dfh.lam=0.5,seed=3 | '
    'market1501 | 14.06 \\u00b1 1.13 | 1234 |\\n')
""")
WORDS = (
  *('14.06 ± 1.12', '3.21', '100.00', '17661', '2210', 'market1501'),
  *('msmt17_validation', 'cuhk03_labeled', 'infrared to visible'),
  *('client:depot_infrared, best', '1234567', 'campus', '0.9877', 'cameras 6'),
  *('optim.lr=0.0125,dfh.lam=0.5,seed=3', '14.06 ± 1.13', '1234'),
  *('worse than an untrained model', 'fedpav+mine.power_rule', 'seeds 5'),
  *('+7.6 [+5.1, +10.2]', '12,936 / 12,936'),
)


def printed(folder, columns):
  """What the tables print in a terminal of so many columns, 0 for a pipe."""
  command = [sys.executable, '-c', PROGRAM, str(folder)]
  environment = {**os.environ, 'TERM': 'xterm', 'PYTHONUNBUFFERED': '1'}
  environment.pop('COLUMNS', None)
  if not columns:
    done = subprocess.run(
      command, env=environment, capture_output=True, check=True
    )
    return done.stdout.decode()
  ours, theirs = pty.openpty()
  size = struct.pack('HHHH', 50, columns, 0, 0)
  fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
  found = b''
  with subprocess.Popen(
    command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
  ) as child:
    os.close(theirs)
    while True:
      try:
        part = os.read(ours, 65536)
      except OSError:  # the child has closed its end
        break
      if not part:
        break
      found += part
  os.close(ours)
  assert child.returncode == 0, found.decode()
  # Rich takes the width of a terminal only where it may also format text.
  plain = re.sub('\x1b\\[[0-9;]*m', '', found.decode())
  return plain.replace('\r\n', '\n')


@pytest.mark.parametrize('columns', [80, 100, 140, 0])
def test_nothing_is_cut_at_any_width(tmp_path, columns):
  found = printed(tmp_path, columns)
  lines = found.splitlines()
  assert '…' not in found
  assert all(len(line) <= (columns or 200) for line in lines), found
  for word in WORDS:
    assert word in found, (word, found)
  # A name longer than a line goes on in the next one.
  assert 'x' * 90 in found.replace('\n', ''), found
  # Values that all rows share are said once.
  assert found.count('cuhk03_labeled') == 1
  # The table of results fits into 140 columns, and 80 have lines for each row.
  header = re.search('^target +model +round +mAP', found, re.MULTILINE)
  assert bool(header) == (columns in (140, 0)), found


def test_names_cannot_control_the_terminal(capsys):
  screen = console.Console(highlight=False)
  evil = '\x1b]0;title\x07'
  rows = [[evil, evil], ['b', evil]]
  console_table.show(screen, evil, ['name', 'fact'], rows, ('fact',))
  assert '\x1b' not in capsys.readouterr().out
