"""Programs of `jax.export`: their platforms, and a process that runs one."""

import re
import subprocess
import sys

import jax
import numpy as np
import pytest
import toy_embedding
from jax import export

from fedreid_jax.apps.deploy.exchange import jax_file

ABOUT = {'summary': 'images -> embedding'}
# What docs/export.md shows, without this package and Flax.
READER = """
import json, sys, zipfile
import jax, numpy as np
program, images, out = sys.argv[1:]
with zipfile.ZipFile(program) as file:
  about = json.loads(file.read('about.json'))
  embed = jax.export.deserialize(bytearray(file.read('program.bin'))).call
np.save(out, embed(np.load(images)))
print(about['summary'])
assert not {'fedreid_jax', 'flax'} & {*sys.modules}
"""


def test_a_process_with_jax_only_computes_the_same(tmp_path):
  pytest.importorskip('flatbuffers', reason='pip install .[export]')
  found = toy_embedding.tiny('resnet18', flip=True)
  (tmp_path / 'p.jax.zip').write_bytes(jax_file.encode(found, ABOUT))
  np.save(tmp_path / 'images.npy', toy_embedding.pixels(5))
  names = ('p.jax.zip', 'images.npy', 'out.npy')
  done = subprocess.run(
    [sys.executable, '-c', READER, *(str(tmp_path / n) for n in names)],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    timeout=240,
  )
  assert (done.returncode, done.stdout) == (0, f'{ABOUT["summary"]}\n'), (
    done.stderr
  )
  wanted = toy_embedding.expected(found, 5)
  assert wanted.std() > 0.01
  got = np.load(tmp_path / 'out.npy')
  np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


def test_a_file_has_equal_bytes_and_no_path_of_this_machine():
  pytest.importorskip('flatbuffers', reason='pip install .[export]')
  found = toy_embedding.tiny('convnet')
  content = jax_file.encode(found, ABOUT)
  assert content == jax_file.encode(found, ABOUT)
  assert not re.findall(rb'/\w+/[\w/.-]+\.py', content)


@toy_embedding.every_network
def test_every_network_is_one_program_for_all_platforms(name):
  found = toy_embedding.tiny(name, flip=True)
  exported = jax_file.lowered(found)
  assert exported.platforms == ('cpu', 'cuda', 'tpu')
  assert [str(a) for a in exported.in_avals][:1] == ['uint8[b,32,16,3]']
  assert str(exported.out_avals[0]).startswith('float32[b,')
  text = exported.mlir_module()
  calls = {line for line in text.splitlines() if 'custom_call' in line}
  assert all('shape_assertion' in line for line in calls), calls
  got = jax.jit(exported.call)(*toy_embedding.inputs(found, 2))
  np.testing.assert_allclose(
    got, toy_embedding.expected(found, 2), rtol=0, atol=1e-4
  )


def convolutions(text):
  return text.count('stablehlo.convolution'), text.count('dot_general')


def test_convolutions_are_those_of_the_platform_of_the_program():
  """On a CPU the 1x1 convolutions are products of matrices."""
  found = toy_embedding.tiny('resnet18')

  def counted(platform):
    made = export.export(jax.jit(found.call), platforms=[platform])(
      *found.inputs.values()
    )
    return convolutions(made.mlir_module())

  for platform in ('cuda', 'tpu'):
    assert counted(platform) == (20, 0)
  num, products = counted('cpu')
  assert num < 20 and products > 0
