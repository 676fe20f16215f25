import os
import socket
import stat
import threading

import pytest

from fedreid_jax import errors
from fedreid_jax.apps.sites import local_socket


@pytest.fixture
def served(tmp_path):
  """A socket that answers each message with its bytes in reverse."""
  path = tmp_path / 'site.sock'
  at = local_socket.listen(path)
  threading.Thread(
    target=local_socket.serve, args=(at, lambda x: x[::-1]), daemon=True
  ).start()
  return path


def test_only_the_owner_can_connect(served):
  assert stat.S_IMODE(os.stat(served).st_mode) == 0o600


def test_messages_of_any_length_are_answered(served):
  for message in (b'', b'abc', os.urandom(3 * 2**20 + 1)):
    assert local_socket.ask(str(served), message) == message[::-1]


def test_nothing_is_sent_to_a_peer_that_replied_to_an_empty_message():
  ends = socket.socketpair()
  with ends[0], ends[1]:
    sent = []

    class Recorded:
      def sendall(self, data):
        sent.append(bytes(data))
        ends[0].sendall(data)
        ends[1].close()  # The peer replied and left.

    local_socket._send(Recorded(), b'')
  assert sent == [bytes(8)]


def test_a_connection_without_a_message_does_not_end_the_service(served):
  with socket.socket(socket.AF_UNIX) as one:
    one.connect(str(served))
    one.sendall(b'\xff' * 8)
  assert local_socket.ask(str(served), b'ab') == b'ba'


def test_a_peer_that_sends_nothing_does_not_stop_the_service(
  served, monkeypatch
):
  monkeypatch.setattr(local_socket, 'SILENT_S', 0.05)
  with socket.socket(socket.AF_UNIX) as one:
    one.connect(str(served))
    assert local_socket.ask(str(served), b'ab') == b'ba'


def test_a_second_process_is_refused_and_a_socket_that_is_left_is_replaced(
  served, tmp_path
):
  with pytest.raises(errors.LockedError, match='another process'):
    local_socket.listen(served)
  left = tmp_path / 'left.sock'
  local_socket.listen(left).close()
  with pytest.raises(errors.ResourceError, match='does not answer'):
    local_socket.ask(str(left), b'')
  local_socket.listen(left).close()


def test_a_path_that_is_no_socket_is_not_replaced(tmp_path):
  path = tmp_path / 'notes'
  path.write_text('kept')
  with pytest.raises(errors.ResourceError, match='cannot listen'):
    local_socket.listen(path)
  assert path.read_text() == 'kept'
