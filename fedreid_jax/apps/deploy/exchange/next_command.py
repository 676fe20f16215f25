"""The command that uses an exported file, for users to copy."""

import shlex
from typing import Any

from fedreid_jax.apps.deploy.exchange.export import Written
from fedreid_jax.config import recipes, schema


def after(written: Written, kind: str) -> str:
  """Returns a command that uses an exported file.

  Args:
    written: the file.
    kind: 'jax', 'onnx', 'safetensors' or 'torch'.
  """
  path = str(written.path)
  if kind == 'safetensors':
    return _train(path, written.about)
  code = {
    'jax': (
      'import jax, zipfile; '
      f'f = zipfile.ZipFile({path!r}); '
      "p = jax.export.deserialize(bytearray(f.read('program.bin'))); "
      'print(p.in_avals, p.out_avals)'
    ),
    'onnx': (
      'import onnxruntime; '
      f's = onnxruntime.InferenceSession({path!r}); '
      'print(s.get_modelmeta().description)'
    ),
    'torch': (
      'import torch; '
      f'f = torch.load({path!r}, weights_only=True); '
      "print(f['fedreid_jax']['summary'], *f['state_dict'])"
    ),
  }[kind]
  # A shell interprets these characters within double quotes.
  quoted = shlex.quote(code) if {*'"$`\\'} & {*code} else f'"{code}"'
  return f'python -c {quoted}'


def _train(path: str, about: dict[str, Any]) -> str:
  """Returns a command that trains the same network from weights."""
  recipe = about['run']['recipe']
  usual = schema.default().model.to_dict()
  fields = {
    f'model.{name}': value
    for name, value in about['model'].items()
    if value != usual.get(name)
  }
  fields['model.pretrained'] = path
  # Weights are refused for the synthetic world on which they were trained.
  if 'world_seed' in about:
    fields['data.world_seed'] = about['world_seed'] + 1
  return shlex.join(
    [
      *('fedreid', 'train'),
      recipe if recipe in recipes.names() else 'RECIPE',
      *(f'--config.{name}={value}' for name, value in fields.items()),
    ]
  )
