"""A sheet of example images."""

import os

from PIL import Image, ImageDraw

from fedreid_jax import errors
from fedreid_jax.data.synthetic import photographs


def write(
  path: str | os.PathLike,
  *,
  domains: int = 8,
  identities: int = 3,
  cameras: int = 4,
  height: int = 128,
  width: int = 64,
  seed: int = 0,
) -> None:
  """Writes a sheet of examples: one row per domain, and a row in infrared.

  Args:
    path: PNG file to write.
    domains: rows of visible images.
    identities: groups in a row, each one person by all cameras.
    cameras: images in a group.
    height: H of an image, pixels.
    width: W of an image, pixels.
    seed: of all synthetic images.

  Raises:
    ResourceError: if the file cannot be written.
  """
  gap, margin = 8, 84
  columns = identities * (cameras * width + gap)
  sheet = Image.new(
    'RGB', (margin + columns, (domains + 1) * (height + gap) + gap), 'white'
  )
  pen = ImageDraw.Draw(sheet)
  rows = [(d, 'visible') for d in range(domains)] + [(0, 'infrared')]
  for row, (domain, modality) in enumerate(rows):
    sample = photographs.generate(
      domain,
      identities,
      cameras,
      1,
      height=height,
      width=width,
      seed=seed,
      modality=modality,
    )
    name = f'domain {domain}'
    if domain < len(photographs.DOMAIN_NAMES):
      name = photographs.DOMAIN_NAMES[domain]
    y = gap + row * (height + gap)
    pen.text((6, y + 4), f'{name}\n{modality}', fill='black')
    for image, person, camera in zip(*sample, strict=True):
      x = margin + person * (cameras * width + gap) + camera * width
      sheet.paste(Image.fromarray(image), (int(x), y))
  try:
    # The grain of the sensors makes a true-colour file three times the size.
    sheet.quantize(256).save(path, format='PNG', optimize=True)
  except OSError as error:
    raise errors.ResourceError(
      f'cannot write {path}', 'synthetic.contact_sheet', str(error)
    ) from error
