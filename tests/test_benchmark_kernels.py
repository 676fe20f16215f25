"""Profiles: the kernels that take most time."""

import gzip
import json

from benchmarks import kernels


def name(kind, pid, tid, text):
  return {
    'ph': 'M',
    'name': kind,
    'pid': pid,
    'tid': tid,
    'args': {'name': text},
  }


def event(pid, tid, text, microseconds, **args):
  return {
    'ph': 'X',
    'pid': pid,
    'tid': tid,
    'name': text,
    'dur': microseconds,
    'args': args,
  }


def write(tmp_path, events):
  path = tmp_path / 'plugins' / 'host.trace.json.gz'
  path.parent.mkdir()
  path.write_bytes(gzip.compress(json.dumps({'traceEvents': events}).encode()))


def test_only_streams_of_devices_count(tmp_path):
  write(
    tmp_path,
    [
      name('process_name', 1, 0, '/device:GPU:0'),
      name('process_name', 9, 0, '/host:CPU'),
      name('thread_name', 1, 7, 'Stream #7(Compute)'),
      name('thread_name', 1, 8, 'XLA Ops'),
      event(1, 7, 'gemm', 30),
      event(1, 7, 'relu', 10),
      event(1, 7, 'gemm', 40),
      event(1, 8, 'gemm', 500),
      event(9, 7, 'wait', 900, hlo_op='x'),
    ],
  )
  assert kernels.longest(tmp_path, 1) == [
    {'name': 'gemm', 'share': 70 / 80, 'calls': 2}
  ]


def test_a_loop_on_a_cpu_is_not_a_kernel(tmp_path):
  write(
    tmp_path,
    [
      event(9, 1, 'while.3', 99, hlo_op='while.3'),
      event(9, 1, 'dot.1', 3, hlo_op='dot.1'),
      event(9, 2, 'python', 50),
      event(9, 2, 'add.2', 1, hlo_op='add.2'),
    ],
  )
  found = kernels.longest(tmp_path, 10)
  assert [row['name'] for row in found] == ['dot.1', 'add.2']
  assert found[0]['share'] == 0.75
