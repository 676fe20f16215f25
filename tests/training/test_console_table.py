"""Tables in a terminal of 80, 100 and 140 columns, and in a pipe, as in 80."""

import contextlib
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
  import os, pathlib, sys, types
  from rich import console
  from fedreid_jax.apps.deploy.commands import search
  from fedreid_jax.apps.papers import comparison
  from fedreid_jax.training.reports import console_table
  from fedreid_jax.training.files import recorder

  # A process for each stream, which has imported everything.
  for stream in map(int, sys.argv[2:]):
    if not os.fork():
      os.dup2(stream, 1)
      break
    os.close(stream)
  else:
    sys.exit(any([os.wait()[1] for _ in sys.argv[2:]]))

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
                              distance=0.98765, same=True,
                              strangers='', origin='')
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


@pytest.fixture(scope='module')
def printed(tmp_path_factory):
  """What the tables print at each width of a terminal, 0 for a pipe."""
  streams = {columns: terminal(columns) for columns in (80, 100, 140)}
  streams[0] = os.pipe()
  theirs = [stream for _, stream in streams.values()]
  environment = {**os.environ, 'TERM': 'xterm', 'PYTHONUNBUFFERED': '1'}
  environment.pop('COLUMNS', None)
  folder = tmp_path_factory.mktemp('tables')
  with subprocess.Popen(
    [sys.executable, '-c', PROGRAM, str(folder), *map(str, theirs)],
    env=environment,
    stdin=subprocess.DEVNULL,
    pass_fds=theirs,
  ) as child:
    for stream in theirs:
      os.close(stream)
    found = {columns: read(ours) for columns, (ours, _) in streams.items()}
  assert child.returncode == 0, found
  return found


def terminal(columns):
  """Returns descriptors of both ends of a terminal."""
  ours, theirs = pty.openpty()
  size = struct.pack('HHHH', 50, columns, 0, 0)
  fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
  return ours, theirs


def read(stream):
  """Reads a stream to its end, and closes it."""
  found = b''
  # A terminal whose other end is closed gives an error.
  with contextlib.suppress(OSError):
    while part := os.read(stream, 65536):
      found += part
  os.close(stream)
  # Rich takes the width of a terminal only where it may also format text.
  plain = re.sub('\x1b\\[[0-9;]*m', '', found.decode())
  return plain.replace('\r\n', '\n')


@pytest.mark.slow
@pytest.mark.parametrize('columns', [80, 100, 140, 0])
def test_nothing_is_cut_at_any_width(printed, columns):
  found = printed[columns]
  lines = found.splitlines()
  assert '…' not in found
  assert all(len(line) <= (columns or 80) for line in lines), found
  for word in WORDS:
    assert word in found, (word, found)
  # A name longer than a line goes on in the next one.
  assert 'x' * 90 in found.replace('\n', ''), found
  # Values that all rows share are said once.
  assert found.count('cuhk03_labeled') == 1
  # The table of results fits into 100 columns, and 80 have lines for each row.
  header = re.search('^target +model +round +mAP', found, re.MULTILINE)
  assert bool(header) == (columns in (100, 140)), found


def test_names_cannot_control_the_terminal(capsys):
  screen = console.Console(highlight=False)
  evil = '\x1b]0;title\x07'
  rows = [[evil, evil], ['b', evil]]
  console_table.show(screen, evil, ['name', 'fact'], rows, ('fact',))
  assert '\x1b' not in capsys.readouterr().out
