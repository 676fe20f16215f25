"""`fedreid export` and `fedreid import-weights` as a user meets them."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
import toy
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.apps.deploy import exchange, export_choices, image_input
from fedreid_jax.config import load
from fedreid_jax.models import weights
from fedreid_jax.training import loop, snapshot

NCHW = image_input.ImageInput('nchw')
UNIT = image_input.ImageInput(values='unit')
PACKAGES = {
  'jax': ('flatbuffers',),
  'onnx': ('onnx', 'onnxruntime'),
  'safetensors': (),
  'torch': ('torch',),
}


def has(name):
  return importlib.util.find_spec(name) is not None


@pytest.fixture(scope='module')
def resnet_run(tmp_path_factory):
  """A run of a tiny ResNet, which PyTorch has."""
  config = toy.replaced(
    toy.synthetic_config(),
    {
      'name': 'fedpav',
      'model.name': 'resnet18',
      'model.width': 1 / 32,
      'data.channels': 'rgb',
      'data.mean': (0.5,) * 3,
      'data.std': (0.25,) * 3,
    },
  )
  folder = tmp_path_factory.mktemp('run')
  loop.train(config, folder)
  return folder


def recommended(text, tmp_path):
  """Runs the command that a command recommends."""
  (line,) = (x for x in text.splitlines() if x.startswith('next: '))
  program, *arguments = shlex.split(line.removeprefix('next: '))
  assert program == 'python'
  return subprocess.run(
    [sys.executable, *arguments],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env=dict(os.environ) | {'JAX_NUM_CPU_DEVICES': '1'},
    timeout=240,
    check=True,
  ).stdout


@pytest.mark.slow
@pytest.mark.parametrize('kind', PACKAGES)
def test_a_file_is_written_checked_and_described(kind, request, tmp_path):
  if not all(map(has, PACKAGES[kind])):
    pytest.skip("pip install '.[export]', and torch for --format=torch")
  form = exchange.FORMATS[kind]
  name = 'resnet_run' if kind == 'torch' else 'tiny_run'
  workdir = request.getfixturevalue(name)
  data = load.load_saved(workdir).data
  size = data.height, data.width, 3
  code, text, err = commands.launch_program(
    'export', f'--workdir={workdir}', f'--format={kind}'
  )
  assert code == 0, err
  path = workdir / f'global-1{form.suffix}'
  assert f'wrote {path} ({path.stat().st_size:,} bytes)' in text
  summary = f'uint8 [b, {data.height}, {data.width}, 3] (RGB, values 0 to 255, '
  summary += 'normalised in the'
  if form.reader is None:
    names = 'torchvision' if kind == 'torch' else 'fedreid_jax'
    assert f'tensors in the names of {names}' in text
  else:
    assert summary in text
    pixels = np.random.default_rng(5).integers(0, 256, (6, *size), np.uint8)
    wanted = snapshot.load(workdir).embed(pixels)
    got = form.reader(path)(pixels)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)
  if kind == 'safetensors':
    about = weights.card(path)
    assert f'--config.model.pretrained={path}' in text
    assert "'--config.model.features=(4, 8)'" in text
  else:
    shape = f'uint8[b,{data.height},{data.width},3]'
    said = shape if kind == 'jax' else summary
    assert said in recommended(text, tmp_path)
  if kind == 'jax':
    about = json.loads(zipfile.ZipFile(path).read('about.json'))
  if kind in ('jax', 'safetensors'):
    assert about['run']['rounds'] == 1
    assert about['embedding']['flip'] is True
    assert about['embedding']['metric'] == 'euclidean'
    assert len(about['run']['weights_sha256']) == 64


def test_a_file_says_what_it_expects(tiny_run, tmp_path):
  runtime = pytest.importorskip('onnxruntime', reason='pip install .[export]')
  out = tmp_path / 'a.onnx'
  received = image_input.ImageInput('nchw', 'normalised')
  written = exchange.export(tiny_run, 'onnx', out, received=received)
  assert written.difference < 1e-4
  session = runtime.InferenceSession(out)
  (images,) = session.get_inputs()
  assert (images.type, images.shape[:2]) == ('tensor(float)', ['b', 3])
  about = session.get_modelmeta().custom_metadata_map
  data = load.load_saved(tiny_run).data
  mean, std = (', '.join(f'{x:g}' for x in y) for y in (data.mean, data.std))
  said = f'values 0 to 1 minus ({mean}), divided by ({std})'
  assert f'(RGB, {said})' in about['summary']
  described = json.loads(about['inputs'])['images']
  assert described['layout'] == 'nchw' and described['values'] == said
  normalisation = json.loads(about['normalisation'])
  assert normalisation['place'] == 'before the program'
  assert normalisation['mean'] == [*data.mean]


def test_the_command_and_the_files_know_the_same_formats():
  assert export_choices.FORMATS == (*exchange.FORMATS,)


def test_grey_images_have_no_values_of_imagenet():
  with pytest.raises(errors.ConfigError, match='has grey ones'):
    image_input.ImageInput(values='imagenet').check(1)


@pytest.mark.slow
def test_the_page_has_the_way_from_a_photograph_to_its_vector(
  tiny_run, tmp_path, monkeypatch
):
  pytest.importorskip('onnxruntime', reason="pip install '.[export]'")
  page = (commands.ROOT / 'docs/export.md').read_text()
  (code,) = (
    code
    for code in re.findall(r'```python\n(.*?)```', page, re.DOTALL)
    if 'photo.jpg' in code
  )
  exchange.export(tiny_run, 'onnx', tmp_path / 'global-20.onnx')
  rng = np.random.default_rng(0)
  small = Image.fromarray(rng.integers(0, 256, (9, 7, 3), np.uint8))
  small.resize((70, 90)).save(tmp_path / 'photo.jpg', exif=_turned())
  monkeypatch.chdir(tmp_path)
  space: dict[str, Any] = {}
  exec(code, space)  # noqa: S102
  wanted = snapshot.load(tiny_run).embed(['photo.jpg'])
  np.testing.assert_allclose(space['vectors'], wanted, rtol=0, atol=1e-4)


def _turned():
  """Returns a tag that says the camera was turned by 90 degrees."""
  exif = Image.Exif()
  exif[0x0112] = 6
  return exif


def test_a_folder_is_written_and_replaced(tiny_run, tmp_path, monkeypatch):
  content = {'weights.safetensors': b'abc', 'reid_config.json': b'{}'}
  small = exchange.FORMATS['trackers']._replace(encode=lambda *_: content)
  monkeypatch.setitem(exchange.FORMATS, 'trackers', small)
  for _ in range(2):
    written = exchange.export(tiny_run, 'trackers', tmp_path / 'shop')
  assert (written.path, written.size) == (tmp_path / 'shop', 5)
  found = {p.name: p.read_bytes() for p in written.path.iterdir()}
  assert found == content
  command = exchange.next_command(written, 'trackers')
  assert f"from_pretrained('{written.path}')" in shlex.split(command)[2]


def test_a_folder_cannot_replace_a_file(tiny_run, tmp_path, monkeypatch):
  small = exchange.FORMATS['trackers']._replace(encode=lambda *_: {'a': b''})
  monkeypatch.setitem(exchange.FORMATS, 'trackers', small)
  out = tmp_path / 'taken'
  out.touch()
  with pytest.raises(errors.ResourceError, match='File exists'):
    exchange.export(tiny_run, 'trackers', out)


def test_the_next_command_trains_from_the_weights(tiny_run, tmp_path):
  out = tmp_path / 'w.safetensors'
  written = exchange.export(tiny_run, 'safetensors', out)
  assert written.size == out.stat().st_size and written.difference is None
  command = exchange.next_command(written, 'safetensors')
  program, door, recipe, *flags = shlex.split(command)
  assert (program, door, recipe) == ('fedreid', 'train', 'fedpav')
  assert '--config.data.world_seed=1' in flags
  assert written.about['run']['earlier_digests'] == []
  private = exchange.next_command(written._replace(private=True), 'safetensors')
  assert shlex.split(private)[2] == 'RECIPE'


@pytest.mark.parametrize(
  'path', ['a.onnx', 'a b.onnx', 'a!b.onnx', '$a`b.onnx', "it's.onnx"]
)
def test_a_recommended_command_is_safe_to_paste(path):
  """Outside of single quotes bash would expand the history at `!`."""
  written = exchange.Written(Path(path), 0, {}, None, 0, '')
  command = exchange.next_command(written, 'onnx')
  assert repr(path) in shlex.split(command)[2]
  if {*path} & {*'!$`'}:
    assert command.startswith("python -c '")


@pytest.mark.parametrize(
  ('flags', 'code', 'message'),
  [
    ([], 2, 'no format'),
    pytest.param(['--format=pdf'], 2, 'pdf', marks=pytest.mark.slow),
  ],
)
def test_one_line_and_a_code(flags, code, message, tmp_path):
  status, _, err = commands.launch_program(
    'export', f'--workdir={tmp_path}', *flags
  )
  lines = err.strip().splitlines()
  assert status == code and len(lines) == 1, err
  assert lines[0].startswith(f'error[{code}]: ') and message in lines[0]
  assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
  ('kind', 'given', 'code', 'message'),
  [
    ('jax', {'out': Path('a.onnx')}, 2, 'let it end in .jax.zip'),
    ('jax', {'out': Path('/none/a.jax.zip')}, 6, 'no such folder'),
    ('jax', {'received': NCHW}, 2, 'jax has no layout'),
    ('trackers', {'received': UNIT}, 2, 'trackers has no layout'),
    ('trackers', {}, 2, "no network 'convnet'"),
    ('safetensors', {'model': 'client:x'}, 2, 'there are global'),
    ('safetensors', {'checkpoint': '9'}, 4, 'no checkpoint 9'),
  ],
)
def test_what_cannot_be_exported(tiny_run, kind, given, code, message):
  before = {path.name for path in tiny_run.iterdir()}
  with pytest.raises(errors.FedReIDError, match=message) as info:
    exchange.export(tiny_run, kind, **given)
  assert info.value.exit_code == code
  assert {path.name for path in tiny_run.iterdir()} == before


@pytest.mark.parametrize(
  ('kind', 'package', 'remedy'),
  [
    ('jax', 'flatbuffers', "pip install 'fedreid_jax[export]'"),
    ('onnx', 'onnx', "pip install 'fedreid_jax[export]'"),
    ('torch', 'torch', 'pip install torch'),
  ],
)
def test_a_missing_package_is_named_with_its_extra(
  tiny_run, kind, package, remedy, tmp_path, monkeypatch
):
  monkeypatch.setitem(sys.modules, package, None)
  with pytest.raises(errors.ConfigError, match='no ' + package) as info:
    exchange.export(
      tiny_run, kind, tmp_path / f'a{exchange.FORMATS[kind].suffix}'
    )
  assert remedy in info.value.line()
  assert not [*tmp_path.iterdir()]


def test_a_program_that_differs_is_not_written(tiny_run, tmp_path, monkeypatch):
  wrong = exchange.FORMATS['jax']._replace(
    packages=(),
    encode=lambda found, about: b'',
    reader=lambda path: lambda images: np.zeros((len(images), 8)),
  )
  monkeypatch.setitem(exchange.FORMATS, 'jax', wrong)
  with pytest.raises(errors.ConfigError, match='differs from the evaluation'):
    exchange.export(tiny_run, 'jax', tmp_path / 'a.jax.zip')
  assert not [*tmp_path.iterdir()]


def test_import_weights_end_to_end(tmp_path):
  source, out = tmp_path / 'w.pth', tmp_path / 'w.safetensors'
  if has('torch'):
    import torch

    from benchmarks import torch_resnet

    model = {
      'name': 'resnet18',
      'width': 1 / 32,
      'last_stride': 1,
      'neck': 'bn',
    }
    state = torch_resnet.ResNet(model, (0.0,) * 3, (1.0,) * 3).state_dict()
    torch.save({f'module.{n}': x.half() for n, x in state.items()}, source)
  code, text, err = commands.launch_program(
    'import-weights', source, f'--out={out}'
  )
  if not has('torch'):
    assert code == 2 and "pip install 'torch>=2.6'" in err
    return
  assert code == 0, err
  assert "removed the prefix 'module.' of 100 names" in text
  assert 'converted 100 tensors of float16 to float32' in text
  (command,) = (x for x in text.splitlines() if x.startswith('next: '))
  flags = shlex.split(command)[4:]
  assert flags == [
    '--config.model.name=resnet18',
    '--config.model.width=0.03125',
    '--config.data.mean=(0.485,0.456,0.406)',
    '--config.data.std=(0.229,0.224,0.225)',
    f'--config.model.pretrained={out}',
  ]
  assert out.stat().st_size


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['a.pth'], 'no file to write'),
    pytest.param(
      ['--out=a.safetensors'], '0 files of weights', marks=pytest.mark.slow
    ),
    pytest.param(
      ['a.pth', 'b.pth', '--out=a.safetensors'],
      '2 files of weights',
      marks=pytest.mark.slow,
    ),
  ],
)
def test_import_weights_needs_two_files(flags, message):
  code, _, err = commands.launch_program('import-weights', *flags)
  assert code == 2 and message in err and 'fedreid import-weights' in err
