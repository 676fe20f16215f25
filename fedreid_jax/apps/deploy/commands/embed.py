"""Embed images or a video: `fedreid embed --workdir=DIR`.

  fedreid embed --workdir=DIR --images=FOLDER --out=vectors.npy
  fedreid embed --weights=NAME --images=FOLDER   # without a run

The command embeds all images in a folder and its subfolders with the model of a
run. It writes `vectors.npy` (float32 [n, D]), `paths.csv` (the image of each
row) and `vectors.json` (the model and its distance). It does not need the
images on which the run was trained. docs/search.md describes the files.

With `--detect=DETECTOR.onnx` or `--detect=hog` the images are photographs: the
persons in them are cut out, kept in a folder with their boxes, and embedded. A
video, `--images=FILE.avi --every=3`, is a series of photographs, and
`paths.csv` has the time of each vector.
"""

from pathlib import Path

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.deploy.commands import (
  detect_flags,
  embedding_flags,
  model_flags,
)
from fedreid_jax.cli import run

flags.adopt_module_key_flags(embedding_flags)
flags.adopt_module_key_flags(detect_flags)
_IMAGES = flags.DEFINE_string(
  'images',
  None,
  'Folder of images (folders in it are searched as well), or a video.',
)
_OUT = flags.DEFINE_string('out', 'vectors.npy', 'File to write.')


def main(argv: list[str]) -> None:
  """Writes the vectors and prints the command that searches them."""

  def body():
    if not _IMAGES.value:
      raise errors.ConfigError(
        'no images', 'command line', 'give --images=FOLDER'
      )
    model_flags.check()
    from fedreid_jax.apps.deploy import vectors

    out = Path(_OUT.value).expanduser()
    vectors.check_out(out)
    images = detect_flags.photographs(_IMAGES.value)
    search = detect_flags.opened(images, out)
    model = model_flags.load()
    embedding_flags.say_model(model)
    detected, times = None, {}
    if search:
      # Flags of the model are checked before many photographs are searched.
      embedding_flags.modality(model)
      limit = model.config.data.max_pixels
      crops, detected = detect_flags.cut(
        search, images, limit, embedding_flags.skips()
      )
      images, times = crops.folder, crops.times
    found = embedding_flags.write(model, images, out, detected, times)
    count, width = found.rows.shape
    line = (
      f'{errors.counted(count, "vector")} of {width} in {out}, their images in '
      f'{vectors.csv_of(out)}, their model in {out.with_suffix(".json")}'
    )
    print(errors.folded(line))
    kind = ['--query_modality=MODALITY'] if model.has_modalities else []
    model_flags.next_step('search', f'--gallery={out}', *kind, '--query=IMAGE')

  run.guarded(argv, body)
