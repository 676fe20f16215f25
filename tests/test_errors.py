"""Messages are one line, and say where a write failed."""

import errno
import os
from pathlib import Path

import pytest

from fedreid_jax import errors
from fedreid_jax.data.benchmark import doctor
from fedreid_jax.data.folder import notices
from fedreid_jax.training.files import recorder

FULL = 'cannot be written: No space left on device'


def test_a_write_without_a_name_gets_one(tmp_path):
  with pytest.raises(errors.ResourceError) as info:
    with errors.on_disk(tmp_path):
      raise OSError(errno.ENOSPC, 'No space left on device')
  assert (info.value.what, info.value.where) == (FULL, str(tmp_path))


@pytest.mark.parametrize(
  'words, found',
  [
    ('RESOURCE_EXHAUSTED: [OS error 28: No space left on device]', True),
    ('[Errno 27] File too large', True),
    ('Disk quota exceeded', True),
    ('RESOURCE_EXHAUSTED: Out of memory', False),
  ],
)
def test_a_full_disk_by_its_words(words, found):
  assert bool(errors.disk_is_full(ValueError(words))) == found


def test_the_record_of_a_run(tmp_path):
  (tmp_path / 'metrics.jsonl').symlink_to('/dev/full')
  with pytest.raises(errors.ResourceError) as info:
    recorder.Recorder(tmp_path, 1).event(1, 'train', {})
  assert info.value.what == FULL
  assert info.value.where == str(tmp_path / 'metrics.jsonl')
  (tmp_path / f'results.json.{os.getpid()}.partial').symlink_to('/dev/full')
  with pytest.raises(errors.ResourceError, match='results.json'):
    recorder.write_json(tmp_path / 'results.json', {'a': 1})
  assert [p.name for p in tmp_path.iterdir()] == ['metrics.jsonl']


def doctored(number):
  """Returns the line of a folder with so many errors."""
  found = [doctor.Finding(True, 'x')] * number
  with pytest.raises(errors.DataError) as caught:
    doctor.check(doctor.Report([], found, ''), Path('m'))
  return caught.value.what


@pytest.mark.parametrize(
  ('message', 'one', 'two'),
  [
    (doctored, '1 error, first: x', '2 errors, first: x'),
    (
      lambda n: notices.held_out([n]),
      '1 identity is held out for the test',
      '2 identities are held out for the test',
    ),
    (
      lambda n: notices.held_out([1, n]),
      '1, 1 identity are held out for the test',
      '1, 2 identities are held out for the test',
    ),
    (
      lambda n: notices.without_query('m', n, cameras=True),
      '1 identity of m has no query, since it has no second image by another '
      'camera',
      '2 identities of m have no query, since they have no second image by '
      'another camera',
    ),
    (lambda n: errors.counted(1000 * n, 'step'), '1,000 steps', '2,000 steps'),
  ],
)
def test_one_thing_is_no_plural(message, one, two):
  assert (message(1), message(2)) == (one, two)


def test_a_message_is_one_line_that_cannot_steer_a_terminal():
  line = errors.DataError('a\x1b[2Kb\nc\r', 'd\udcff\x9b', 'é 人').line()
  assert line == r'error[3]: a\x1b[2Kb c\r — d\udcff\x9b — é 人'
  assert line.isprintable()


def test_long_lines_are_folded_between_words():
  line = '  warning: ' + ' '.join(['words'] * 20)
  first, *rest = errors.folded(f'{line}\nshort').splitlines()
  assert len(first) <= 80 and first.startswith('  warning: words')
  assert [r[:5] for r in rest] == ['    w', 'short']
  assert ' '.join(f'{first} {rest[0].strip()}'.split()) == line.strip()
  path = '/' + 'x' * 100
  assert path in errors.folded(f'written: {path}').splitlines()[-1]
