"""Checks for overlap between training, test and public domains."""

from collections.abc import Iterable, Mapping, Sequence

from fedreid_jax import errors


def check_disjoint(sources: Sequence[str], targets: Sequence[str]) -> None:
  """Refuses to test on a training domain.

  Raises:
    DataError: naming the domains.
  """
  both = sorted(set(sources) & set(targets))
  if both:
    raise errors.DataError(
      f'{both} are trained on and tested on',
      'data.targets',
      'drop them from data.sources or set data.allow_overlap',
    )


def check_no_copies(
  sources: Mapping[str, Iterable[str]], targets: Mapping[str, Iterable[str]]
) -> None:
  """Refuses test files that are copies of training files under any name.

  Args:
    sources: SHA-256 of the training files, by domain.
    targets: SHA-256 of the test files, by domain.

  Raises:
    DataError: with the number of common files of every two domains.
  """
  known = {name: set(files) for name, files in sources.items()}
  copies = []
  for target, files in targets.items():
    own = set(files)
    copies += [
      f'{len(own & theirs)} of {errors.counted(len(own), "file")} of {target} '
      f'{"is" if len(own & theirs) == 1 else "are"} in {source} too'
      for source, theirs in known.items()
      if own & theirs
    ]
  if copies:
    raise errors.DataError(
      'trained on and tested on: ' + ', '.join(copies),
      'data.targets',
      'remove the copies, or set data.allow_overlap',
    )


def check_public(public: str, others: Sequence[str]) -> None:
  """Refuses a public set that is a training or test domain.

  Args:
    public: domain of the public set, '' for none.
    others: domains of clients and targets.

  Raises:
    DataError: naming the domain.
  """
  if public and public in others:
    raise errors.DataError(
      f'the public set {public!r} is trained on or tested on',
      'data.public',
      'name a domain that is neither source nor target',
    )
