"""Writes a sheet of examples of the synthetic images."""

import os
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from fedreid_jax import errors
from fedreid_jax.data.synthetic import photographs, versions

DOMAINS = 'plaza', 'campus', 'station', 'mall'  # of the preset `synthetic`
_GAP, _MARGIN, _HEAD, _SIZE = 10, 104, 48, 18  # pixels


def write(
  path: str | os.PathLike,
  *,
  domains: Sequence[str] = DOMAINS,
  identities: int = 4,
  cameras: int = 4,
  height: int = 160,
  width: int = 80,
  seed: int = 0,
  source: str = versions.UNVERSIONED,
) -> None:
  """Writes a sheet of examples: one row per domain, and a row in infrared.

  The infrared row shows the persons of the first domain. The names of persons
  and cameras stand above their columns.

  Args:
    path: PNG file to write.
    domains: names of the rows of visible images, some of
      `photographs.DOMAIN_NAMES`.
    identities: number of groups in a row, each of one person by all cameras.
    cameras: number of images in a group.
    height: H of an image, pixels.
    width: W of an image, pixels.
    seed: seed of all synthetic images.
    source: `data.source` of the world, one of `versions.NAMES`.

  Raises:
    ResourceError: if the file cannot be written.
  """
  group = cameras * width + _GAP
  rows = [(d, 'visible') for d in domains] + [(domains[0], 'infrared')]
  sheet = Image.new(
    'RGB',
    (_MARGIN + identities * group, _HEAD + len(rows) * (height + _GAP)),
    'white',
  )
  pen = ImageDraw.Draw(sheet)
  font = ImageFont.load_default(_SIZE)
  for person in range(identities):
    x = _MARGIN + person * group
    pen.text((x, 2), f'person {person + 1}', fill='black', font=font)
    for camera in range(cameras):
      label = f'cam {camera + 1}'
      pen.text((x + camera * width, 24), label, fill='black', font=font)
  for row, (name, modality) in enumerate(rows):
    sample = photographs.generate(
      photographs.DOMAIN_NAMES.index(name),
      identities,
      cameras,
      1,
      height=height,
      width=width,
      seed=seed,
      modality=modality,
      source=source,
    )
    y = _HEAD + row * (height + _GAP)
    pen.text((4, y + 4), f'{name}\n{modality}', fill='black', font=font)
    for image, person, camera in zip(*sample, strict=True):
      x = _MARGIN + person * group + camera * width
      sheet.paste(Image.fromarray(image), (int(x), y))
  try:
    # The grain of the sensors makes a true-colour file three times the size.
    sheet.quantize(256, kmeans=5).save(path, format='PNG', optimize=True)
  except OSError as error:
    raise errors.ResourceError(
      f'cannot write {path}', 'synthetic.contact_sheet', str(error)
    ) from error
