"""Synthetic domains as a tree of JPEG files, as somebody's own photographs.

  python -m benchmarks.photo_tree OUT [--identities=30] [--shots=2]

The program writes `OUT/DOMAIN/IDENTITY/photo_cCAMERA_SHOT.jpg`, 160x80 pixels,
for three domains to train on and `station`, which is the last by name and the
target of the preset `photos`. The persons are those of `synthetic_v1`.
"""

import sys
from pathlib import Path

from absl import app, flags

from fedreid_jax.data.datasets import photos
from fedreid_jax.data.synthetic import photographs, versions

_IDENTITIES = flags.DEFINE_integer('identities', 30, 'Persons of a domain.', 2)
_CAMERAS = flags.DEFINE_integer('cameras', 2, 'Cameras of a domain.', 1)
_SHOTS = flags.DEFINE_integer('shots', 2, 'Images of a person by a camera.', 1)

DOMAINS = 'campus', 'mall', 'plaza', 'station'


def main(argv: list[str]) -> None:
  """Writes the tree."""
  out = Path(argv[1])
  for domain in DOMAINS:
    sample = photographs.generate(
      photographs.DOMAIN_NAMES.index(domain),
      _IDENTITIES.value,
      _CAMERAS.value,
      _SHOTS.value,
      height=160,
      width=80,
      source=versions.FIRST,
    )
    for k, pixels in enumerate(sample.images):
      person, camera = sample.identities[k], sample.cameras[k] + 1
      name = f'{domain}/{person:03d}/photo_c{camera}_{k % _SHOTS.value}.jpg'
      photos.save(out, name, pixels)
  print(f'{len(DOMAINS)} domains in {out}')


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
