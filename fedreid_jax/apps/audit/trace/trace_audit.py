"""Tracing of persons in the statistics of DFH of a finished run.

The members are the persons of a client, and the non-members are persons of the
same domain whom no client has. Half of the non-members are the reference of the
attacker, and the others are scored. The feature of a person is the mean over
the person's images with the final model. The published mean is the row m of the
DFS of the client, in three cases:

  sent          as the server has it. The client measured it with its model
                before the aggregation, and the attacker has the final model.
  same images   measured with the model of the attacker, who has the same images
                of the person as the client: an upper bound.
  other images  measured on every second image of a person; the attacker has the
                others.

The negative control asks for the persons of each client in the mean of the next
client. The positive control has isotropic features in the same numbers.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection
from fedreid_jax.apps.audit.detection import Detection
from fedreid_jax.apps.audit.trace import tracing
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import validation
from fedreid_jax.data.federation import Images
from fedreid_jax.training.clients import domain_statistics
from fedreid_jax.training.loaded_run import LoadedRun

FEWEST = 8  # persons outside the training
CASES = ('sent', 'same images', 'other images')
NEGATIVE = 'negative control: mean of another client'


class Side(NamedTuple):
  """Mean features of persons, `[P, D]`.

  Attributes:
    every: over all images of each person.
    even: over every second image, starting with the first.
    odd: over the other images.
  """

  every: Float[np.ndarray, 'P D']
  even: Float[np.ndarray, 'P D']
  odd: Float[np.ndarray, 'P D']


class Traced(NamedTuple):
  """Results of the audit.

  Attributes:
    found: success by case, and of the negative control.
    dimensions: number of dimensions of the features.
    effective: number of effective dimensions, the mean over clients.
    expected: AUC by theory for the effective dimensions, the mean over clients.
    simulated: AUC of the positive control.
    theory: AUC by theory for the positive control.
    failed: controls that failed; empty if the audit is valid.
  """

  found: dict[str, Detection]
  dimensions: int
  effective: float
  expected: float
  simulated: float
  theory: float
  failed: tuple[str, ...]


def audit(run: LoadedRun, seed: int = 0) -> Traced:
  """Traces the persons of all clients in the means that the clients sent.

  Raises:
    ConfigError: for a run without DFH, with one client, or without persons of a
      client's domain outside the training.
  """
  clients = run.federation.clients
  kept = domain_statistics.sent(run)
  if kept is None or len(clients) < 2:
    raise errors.ConfigError(
      'no statistics of DFH of two or more clients',
      run.config.name,
      'give a run whose clients send them, as with configs/dfh.py',
    )
  means = np.asarray(kept)[:, 0]
  strangers = [_persons_of(run, _strangers(run, c)) for c in clients]
  members = [_persons_of(run, _members(c)) for c in clients]
  found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {
    case: [] for case in (*CASES, NEGATIVE)
  }
  for k, (own, others) in enumerate(zip(members, strangers, strict=True)):
    elsewhere = members[(k + 1) % len(clients)].every.mean(0)
    for case, mean, kind in (
      (CASES[0], means[k], 'every'),
      (CASES[1], own.every.mean(0), 'every'),
      (CASES[2], own.even.mean(0), 'odd'),
      (NEGATIVE, elsewhere, 'every'),
    ):
      # The reference and the non-members that are scored are different persons:
      # whitening by the scored ones would bias their scores.
      known, asked = getattr(others, kind)[::2], getattr(others, kind)[1::2]
      found[case].append(
        (
          tracing.scores(getattr(own, kind), mean, known),
          tracing.scores(asked, mean, known),
        )
      )
  # Scores are standardised by the reference of each client and can be pooled.
  pooled = {
    case: tuple(np.concatenate(side) for side in zip(*pairs, strict=True))
    for case, pairs in found.items()
  }
  return _judged(members, strangers, pooled, seed)


def _judged(members, strangers, pooled, seed: int) -> Traced:
  """Returns the results with the verdict on both controls."""
  size = members[0].every.shape[1]
  numbers = [len(own.every) for own in members]
  known = [others.every[::2] for others in strangers]
  effective = [tracing.effective_dimensions(rows) for rows in known]
  expected = [
    tracing.theory(dims, number, 1 / len(rows)).auc
    for dims, number, rows in zip(effective, numbers, known, strict=True)
  ]
  # The simulation has the numbers of the first client.
  persons, reference = numbers[0], len(known[0])
  simulated = tracing.simulate(size, persons, reference, seed)
  theory = tracing.theory(float(size), persons, 1 / reference).auc
  failed: list[str] = []
  if abs(simulated - theory) > tracing.CLOSE:
    failed.append(
      f'isotropic features have an AUC of {simulated:.3f}, theory {theory:.3f}'
    )
  if not detection.at_chance(*pooled[NEGATIVE]):
    failed.append(
      'the mean of another client tells the persons from others, AUC '
      f'{detection.auc(*pooled[NEGATIVE]):.3f}'
    )
  return Traced(
    {case: detection.measure(*pair) for case, pair in pooled.items()},
    size,
    float(np.mean(effective)),
    float(np.mean(expected)),
    simulated,
    theory,
    tuple(failed),
  )


class _Album(NamedTuple):
  """Images with their persons and modalities."""

  images: np.ndarray
  persons: Int[np.ndarray, ' M']
  modalities: Int[np.ndarray, ' M']


def _members(client: ClientData) -> _Album:
  return _Album(client.images(), client.labels, client.modalities)


def _strangers(run: LoadedRun, client: ClientData) -> _Album:
  """Returns the images of persons of a client's domain whom no client has."""
  for target in run.federation.targets:
    named: Images = target.images
    own = client.name in (named.name, named.name.removeprefix(validation.NAME))
    if own and target.task == 'retrieval':
      if len(np.unique(named.identities)) >= FEWEST:
        return _Album(named.images(), named.identities, named.modalities)
  raise errors.ConfigError(
    f'fewer than {FEWEST} persons of the domain {client.name} are outside the '
    'training',
    'data.targets',
    'train with evaluation.validation, or give --set=data.targets=... with '
    'the domains of the clients and --set=data.allow_overlap=True',
  )


def _persons_of(run: LoadedRun, album: _Album) -> Side:
  """Returns mean features `[P, D]` of the persons with two images or more."""
  space = domain_statistics.space(run)
  features = run.features(album.images, space, album.modalities)
  rows: list[list[np.ndarray]] = []
  for person in np.unique(album.persons):
    own = features[album.persons == person]
    # The case of other images needs an image on each side.
    if len(own) > 1:
      rows.append([own.mean(0), own[::2].mean(0), own[1::2].mean(0)])
  every, even, odd = np.asarray(rows).transpose(1, 0, 2)
  return Side(every, even, odd)
