"""Omniglot's sources with every fifth character held out to select settings.

  python -m benchmarks.omniglot_heldout images_background_small1 OUT

The program writes `OUT/ALPHABET/CHARACTER/*.png` and
`OUT/ALPHABET_held/CHARACTER/*.png` for every alphabet except Greek, the
preset's target, which is not used to select settings.
"""

import shutil
import sys
from pathlib import Path

from absl import app

TARGET = 'Greek'
EVERY = 5


def main(argv: list[str]) -> None:
  """Writes the tree."""
  source, out = Path(argv[1]), Path(argv[2])
  for alphabet in sorted(p for p in source.iterdir() if p.is_dir()):
    if alphabet.name == TARGET:
      continue
    for number, character in enumerate(sorted(alphabet.iterdir()), start=1):
      held = '' if number % EVERY else '_held'
      folder = out / f'{alphabet.name}{held}' / character.name
      shutil.copytree(character, folder)
  print(f'sources and held-out characters in {out}')


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
