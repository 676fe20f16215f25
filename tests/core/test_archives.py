"""Files that unpack to far more than their size."""

import io
import zipfile
import zlib

import numpy as np
import pytest
from scipy import io as scipy_io

from fedreid_jax.core import archives


@pytest.fixture
def small(monkeypatch):
  """A bound of 1 MB, so that bombs are cheap."""
  monkeypatch.setattr(archives, 'LEAST', 10**6)


def npz(path, **arrays):
  np.savez_compressed(path, **arrays)
  return path


def test_arrays_within_the_bound_are_read(small, tmp_path):
  path = npz(tmp_path / 'a.npz', a=np.arange(100.0), b=np.zeros((2, 3)))
  found = archives.read_npz(path)
  assert found['a'].tolist() == list(range(100)) and found['b'].shape == (2, 3)


def test_large_arrays_are_read_from_large_files(small, tmp_path):
  drawn = np.random.default_rng(0).integers(0, 2**63, 10**6)
  assert archives.read_npz(npz(tmp_path / 'a.npz', a=drawn))['a'].size == 10**6


def test_a_bomb_of_zeros_is_refused(small, tmp_path):
  path = npz(tmp_path / 'a.npz', a=np.zeros(10**6))
  with pytest.raises(ValueError, match='unpacks to more than 1,000,000 bytes'):
    archives.read_npz(path)


def test_many_members_count_together(small, tmp_path):
  path = npz(tmp_path / 'a.npz', **{f'a{k}': np.zeros(10**5) for k in range(9)})
  with pytest.raises(ValueError, match='unpacks'):
    archives.read_npz(path)


def test_a_header_that_announces_too_much_is_refused(tmp_path):
  member = io.BytesIO()
  header = {'descr': '<f8', 'fortran_order': False, 'shape': (10**12,)}
  np.lib.format.write_array_header_1_0(member, header)
  with zipfile.ZipFile(tmp_path / 'a.npz', 'w') as file:
    file.writestr('a.npy', member.getvalue())
  with pytest.raises(ValueError, match=r'shape \(1000000000000,\)'):
    archives.read_npz(tmp_path / 'a.npz')


@pytest.mark.parametrize('content', [b'', b'\x93NUMPY', b'PK\x03\x04'])
def test_other_files_are_refused(tmp_path, content):
  (tmp_path / 'a.npz').write_bytes(content)
  with pytest.raises((ValueError, zipfile.BadZipFile)):
    archives.read_npz(tmp_path / 'a.npz')


def test_files_of_matlab(small, tmp_path):
  path = tmp_path / 'a.mat'
  scipy_io.savemat(path, {'a': np.arange(9.0)}, do_compression=True)
  archives.check_matlab(path)
  zeros = {'a': np.zeros(10), 'b': np.zeros(10**6)}
  scipy_io.savemat(path, zeros, do_compression=True)
  with pytest.raises(ValueError, match='unpacks'):
    archives.check_matlab(path)
  content = bytearray(path.read_bytes())
  content[200:] = bytes(len(content) - 200)
  path.write_bytes(content)
  with pytest.raises(zlib.error):
    archives.check_matlab(path)
