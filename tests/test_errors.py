from fedreid_jax import errors


def test_a_message_is_one_line_that_cannot_steer_a_terminal():
  line = errors.DataError('a\x1b[2Kb\nc\r', 'd\udcff\x9b', 'é 人').line()
  assert line == r'error[3]: a\x1b[2Kb c\r — d\udcff\x9b — é 人'
  assert line.isprintable()
