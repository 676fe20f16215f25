"""Clients and persons that a run leaves out, `data.without`.

A run without them is one whose images never had them. A domain and the images
of a person are removed before anything is drawn: before persons are held out
for validation, and before a domain is divided into clients. A client that is a
part of a domain can only be removed after the division, which keeps the images
of the other parts. Tests and public images stay as they are.
"""

import difflib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData
from fedreid_jax.data.federation import Images

FIELD = 'data.without'
FEW = 8  # persons whom an error lists


def of_domains(
  domains: Sequence[Images], names: Sequence[str]
) -> tuple[tuple[Images, ...], tuple[str, ...]]:
  """Removes domains and persons; returns the rest and the names not found.

  A name is that of a domain, or `DOMAIN/PERSON` with the name of a person, or
  the number of one where persons have no names. The other names may be those
  of clients.

  Raises:
    ConfigError: for an unknown person, or if a domain has nobody else.
  """
  known = {domain.name for domain in domains}
  persons, unknown = _parsed(known, names)
  kept = []
  for domain in domains:
    if domain.name in names:
      continue
    own = persons.get(domain.name, [])
    rows = rows_of(domain, own)
    left = domain.take(np.flatnonzero(~rows)) if own else domain
    if own and not len(left.people):
      raise errors.ConfigError(
        f'nobody is left in {domain.name}', FIELD, f'name {domain.name} itself'
      )
    kept.append(left)
  if domains and not kept:
    raise _empty()
  return tuple(kept), unknown


def of_clients(
  clients: Sequence[ClientData], names: Sequence[str]
) -> tuple[ClientData, ...]:
  """Removes clients.

  Raises:
    ConfigError: for an unknown name, or if no client is left.
  """
  known = [client.name for client in clients]
  for name in names:
    if name not in known:
      raise errors.ConfigError(
        f'no client {name!r}',
        FIELD,
        errors.one_of(name, known, 'DOMAIN/PERSON'),
      )
  left = tuple(client for client in clients if client.name not in names)
  if not left:
    raise _empty()
  return left


def removed(
  domains: Sequence[Images], names: Sequence[str]
) -> tuple[Images, ...]:
  """The images of the persons that `of_domains` removes, by domain."""
  persons, _ = _parsed({domain.name for domain in domains}, names)
  return tuple(
    domain.take(np.flatnonzero(rows_of(domain, persons[domain.name])))
    for domain in domains
    if domain.name in persons
  )


def full_name(domains: Sequence[Images], person: str) -> str:
  """Returns `DOMAIN/PERSON` for a person given with or without the domain.

  Raises:
    ConfigError: if no domain has the person, or several have one of this name.
  """
  domain, sign, _ = person.partition('/')
  if sign and any(one.name == domain for one in domains):
    return person
  found = [one.name for one in domains if person in _numbers(one)]
  if len(found) > 1:
    every = ' '.join(f'--identity={name}/{person}' for name in found)
    raise errors.ConfigError(
      f'{person!r} is a person of {", ".join(found)}',
      '--identity',
      f'give those who are meant: {every}',
    )
  if not found:
    full = [f'{one.name}/{name}' for one in domains for name in _numbers(one)]
    known = dict(zip(full, full, strict=True))
    known |= {name.partition('/')[2]: name for name in full}
    raise errors.ConfigError(
      f'no person {person!r} in the training images',
      '--identity',
      _near(person, known),
    )
  return f'{found[0]}/{person}'


def _numbers(domain: Images) -> dict[str, int]:
  """The numbers of the persons of a domain by their names."""
  numbers = domain.people.tolist()
  if domain.persons:
    return {domain.persons[number]: number for number in numbers}
  return {str(number): number for number in numbers}


def rows_of(domain: Images, persons: Sequence[str]) -> Bool[np.ndarray, ' M']:
  """Mask of the images of some persons.

  Raises:
    ConfigError: for an unknown person.
  """
  named = _numbers(domain)
  for person in persons:
    if person not in named:
      raise errors.ConfigError(
        f'no person {person!r} in the training images of {domain.name}',
        FIELD,
        _near(person, {name: name for name in named}),
      )
  return np.isin(domain.identities, [named[person] for person in persons])


def _parsed(
  known: set[str], names: Sequence[str]
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
  """Returns the persons by domain, and names of neither kind."""
  persons: dict[str, list[str]] = {}
  unknown = []
  for name in names:
    domain, sign, person = name.partition('/')
    if name in known:
      continue
    if sign and domain in known:
      persons.setdefault(domain, []).append(person)
    else:
      unknown.append(name)
  return persons, tuple(unknown)


def _near(person: str, known: Mapping[str, str]) -> str:
  """The remedy for an unknown person: a similar name, or a few of all.

  `known` are names that could have been given, and the names to show for them.
  """
  near = difflib.get_close_matches(person, known, 1)
  if near:
    return f'did you mean {known[near[0]]}?'
  shown = [*dict.fromkeys(known.values())]
  more = ', ...' if len(shown) > FEW else ''
  return f'there are {", ".join(shown[:FEW])}{more}'


def _empty() -> errors.ConfigError:
  return errors.ConfigError(
    'no client is left to train', FIELD, 'keep at least one'
  )
