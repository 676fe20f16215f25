"""Omniglot as five federations with a public set and a held-out alphabet.

  python -m benchmarks.omniglot_folds images_background_small1 FOLDS

The program writes `FOLDS/TARGET/ALPHABET/CHARACTER/*.png`. In each fold the
drawings of drawers 19 and 20 of the four source alphabets are removed from the
sources and become the domain `public`, whose identities are not used; the
target keeps all its drawings. The manifest of `FOLDS/own` has every fifth
character of each alphabet as a test character of that domain, with the drawing
of the first drawer as the query, and trains on the others.
"""

import csv
import shutil
import sys
from pathlib import Path

from absl import app

EVERY = 5  # every fifth character is a test character of `own`
PUBLIC_DRAWERS = ('_19.png', '_20.png')


def main(argv: list[str]) -> None:
  """Writes the folds."""
  source, out = Path(argv[1]), Path(argv[2])
  alphabets = sorted(p.name for p in source.iterdir() if p.is_dir())
  for target in alphabets:
    for alphabet in alphabets:
      for image in sorted((source / alphabet).glob('*/*.png')):
        public = alphabet != target and image.name.endswith(PUBLIC_DRAWERS)
        domain = 'public' if public else alphabet
        person = image.parent.name
        if public:
          person = f'{alphabet}_{person}'
        folder = out / target / domain / person
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, folder / image.name)
  _write_own(source, out / 'own')
  print(f'{len(alphabets)} folds in {out}')


def _write_own(source: Path, out: Path) -> None:
  rows = [('path', 'identity', 'domain', 'camera', 'split')]
  for alphabet in sorted(p for p in source.iterdir() if p.is_dir()):
    for number, character in enumerate(sorted(alphabet.iterdir()), start=1):
      folder = Path(alphabet.name, character.name)
      shutil.copytree(character, out / folder, dirs_exist_ok=True)
      for image in sorted(character.iterdir()):
        drawer = image.stem[-2:]
        tested = 'query' if drawer == '01' else 'gallery'
        split = 'train' if number % EVERY else tested
        person = f'{alphabet.name}-{character.name}'
        path = str(folder / image.name)
        rows.append((path, person, alphabet.name, drawer, split))
  with (out / 'manifest.csv').open('w', newline='', encoding='utf-8') as file:
    csv.writer(file).writerows(rows)


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
