"""3DPeS (Baltieri et al., J-HGBU 2011): about 192 persons, eight cameras.

`RGB/1_2_FRAME_25_RGB.bmp` is person, sequence, frame.
"""

from pathlib import Path

from fedreid_jax import errors
from fedreid_jax.data.datasets import halves, layout
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.data.fixtures import small


def read(root: Path, split: str, trial: int) -> list[Record]:
  """Reads the data set."""
  sequences: dict[int, dict[str, list[str]]] = {}
  for name in layout.images(root, 'RGB'):
    person, _, rest = name.rpartition('/')[2].partition('_')
    sequence = rest.partition('_')[0]
    if not person.isdigit() or not sequence:
      raise errors.DataError(
        f'{name!r} is not person_sequence_...', str(root), 'remove or rename it'
      )
    own = sequences.setdefault(int(person), {})
    own.setdefault(sequence, []).append(name)
  # A sequence is not a camera that several persons have in common, so the
  # sequences are numbered within each person.
  records = [
    Record(name, person, view, 0, 'images')
    for person, own in sequences.items()
    for view, (_, names) in enumerate(sorted(own.items()), 1)
    for name in names
  ]
  if split == 'images':
    return records
  num_train = halves.num_train(records, 193, 100)
  return halves.halve(halves.two_views(records, trial), num_train, trial)


def expected(split: str, trial: int) -> dict[str, Count]:
  """Returns the published counts."""
  del trial
  if split == 'images':
    return {'images': Count(1012, 193)}
  return {
    'train': Count(None, 93, 2),
    # Persons of one sequence have no query.
    'query': Count(None, None, 1),
    'gallery': Count(None, 100, 1),
  }


DATASET = Dataset(
  name='3dpes',
  title='3DPeS',
  read=read,
  expected=expected,
  protocol='single_shot',
  page='the 3DPeS page of ImageLab, University of Modena and Reggio Emilia',
  miniature=small.write_3dpes,
  folders=('3DPeS', '3dpes'),
  options=halves.OPTIONS,
  note='the archive numbers 193 persons, papers give 192',
)
