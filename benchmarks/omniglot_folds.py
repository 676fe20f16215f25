"""Omniglot as five federations with a public set and a held-out alphabet.

  python -m benchmarks.omniglot_folds images_background_small1 FOLDS

The program writes `FOLDS/TARGET/ALPHABET/CHARACTER/*.png`. In each fold the
drawings of drawers 19 and 20 of the four source alphabets are removed from the
sources and become the domain `public`, whose identities are not used; the
target keeps all its drawings.
"""

import shutil
import sys
from pathlib import Path

from absl import app

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
  print(f'{len(alphabets)} folds in {out}')


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
