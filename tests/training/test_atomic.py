from fedreid_jax.training.files import atomic


def round_of(line):
  return int(line) if line.isdigit() else None


def test_lines_of_later_rounds_and_a_torn_end_are_left_out(tmp_path):
  path = tmp_path / 'lines'
  for text in ('1\n2\n', 'x\n', '3\n2\n', '1'):
    atomic.append(path, text)
  content = path.read_bytes()
  assert atomic.lines(content, round_of) == [
    ('1', 1),
    ('2', 2),
    ('x', None),
    ('3', 3),
    ('2', 2),
  ]
  assert atomic.kept(content, 2, round_of) == ('1\n2\n2\n', [3])
  assert atomic.kept(content, 0, round_of) == ('', [3])


def test_an_empty_file_has_no_lines():
  assert atomic.kept(b'', 9, round_of) == ('', [])
