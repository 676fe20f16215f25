"""Folders of photographs as people have them, in four layouts.

Persons differ in colour. Among the files are turned ones, CMYK and palettes,
and the names are not ASCII.
"""

import csv
import itertools
from pathlib import Path

import numpy as np
from PIL import Image

from fedreid_jax import load_config
from fedreid_jax.config import validation

PLACES = 'Bahnhof Süd', 'Straße', 'café', '駅'
ORIENTATION = 0x0112  # the tag of EXIF
TURNED = 6  # the right side of the file is the top of the scene


def picture(person: int, shot: int) -> Image.Image:
  """A person: two colours, one above the other, and noise; 24x12 pixels."""
  colours = np.random.default_rng(person).integers(40, 216, (2, 1, 3))
  pixels = np.repeat(colours, 12, axis=0)
  noise = np.random.default_rng([person, shot]).integers(-20, 20, (24, 12, 3))
  return Image.fromarray(np.uint8(np.clip(pixels + noise, 0, 255)))


def save(path: Path, person: int, shot: int, how: str = '') -> None:
  """Writes a picture, turned or in another mode if asked."""
  path.parent.mkdir(parents=True, exist_ok=True)
  image = picture(person, shot)
  if how == 'turned':
    exif = Image.Exif()
    exif[ORIENTATION] = TURNED
    image.rotate(90, expand=True).save(path, exif=exif, quality=95)
  elif how == 'cmyk':
    image.convert('CMYK').save(path, quality=95)
  elif how == 'palette':
    image.quantize(16).save(path)
  elif how == '16 bits':
    Image.new('I;16', image.size, 40000).save(path)
  else:
    image.save(path, quality=95)


def domains(root: Path, cameras: bool = True, people: int = 4) -> Path:
  """domain/identity/image, each person by two cameras twice."""
  hows = itertools.cycle(('', 'turned', 'cmyk', '', 'palette', '', ''))
  for place, domain in enumerate(PLACES):
    for person in range(people):
      for shot in range(4):
        how = next(hows)
        suffix = 'png' if how == 'palette' else 'jpg'
        camera = f'_c{shot % 2 + 1}' if cameras else ''
        name = f'Person {person} é/photo{camera}_{shot:02d}.{suffix}'
        save(root / domain / name, 100 * place + person, shot, how)
  return root


def one_data_set(root: Path, people: int = 12) -> Path:
  """identity/image with cameras at the ends of the names."""
  for person in range(people):
    for shot, camera in np.ndindex(2, 3):
      name = f'{person:03d} 人/{"ab"[shot]}_{camera + 1:02d}.jpg'
      save(root / name, person, 3 * shot + camera)
  return root


def boxes(root: Path, cameras: int = 8) -> Path:
  """The folders and names of Market-1501, with junk and two more cameras."""

  def box(folder: str, person: int, camera: int, shot: int) -> None:
    name = f'{person:04d}' if person >= 0 else '-1'
    name += f'_c{camera + 1}s1_{shot:06d}_01.jpg'
    save(root / folder / name, person + 1, 2 * camera + shot)

  for person, camera in np.ndindex(6, cameras):
    for shot in range(2):
      tested = 'bounding_box_test' if shot else 'query'
      folder = tested if person > 3 else 'bounding_box_train'
      box(folder, person + 1, camera, shot)
  box('bounding_box_test', -1, 0, 0)
  box('bounding_box_test', 0, 1, 0)
  return root


def manifest(root: Path, *columns: str, people: int = 4) -> Path:
  """manifest.csv with path, identity and the given columns, and the images."""
  rows = []
  for place, person, shot in np.ndindex(3, people, 4):
    path = f'bilder/{place}{person}{shot} ö.jpg'
    save(root / path, 100 * place + person, shot)
    tested = 'gallery' if shot > 1 else 'query'
    row = {
      'path': path,
      'identity': f'Zoë {place} {person}',
      'domain': PLACES[place],
      'camera': f'door {shot % 2}',
      'modality': 'visible',
      'split': tested if place == 2 else 'train',
    }
    rows.append({k: row[k] for k in ('path', 'identity', *columns)})
  with open(root / 'manifest.csv', 'w', encoding='utf-8', newline='') as file:
    writer = csv.DictWriter(file, ['path', 'identity', *columns])
    writer.writeheader()
    writer.writerows(rows)
  return root


def configured(fields):
  """The fields of `data` of a run on photographs, typed."""
  config = load_config('fedpav:photos', data=fields)
  return validation.validate(config).data
