"""Tracing: whether a person is among those whose mean was published.

Homer et al., "Resolving individuals contributing trace amounts of DNA to highly
complex mixtures" (PLoS Genetics 2008); Dwork et al., "Robust traceability from
trace amounts" (FOCS 2015). The attacker has the mean m of the features of J
persons, the feature y of one person, and a reference population. With features
whitened by the mean and the standard deviation of the reference in each of D
dimensions, the score of the person is

  T(y) = <y - ref, m - ref>.

If the whitened features are isotropic and m has noise of variance s^2 in each
dimension, members and non-members differ by

  d' = (D / J) / sqrt(D (1 / J + s^2)),  AUC = Phi(d' / sqrt(2)).

A reference of R persons acts as noise of variance 1 / R. Real features are not
isotropic. Their effective number of dimensions is (sum l)^2 / sum l^2, where l
are the eigenvalues of their covariance.

The members are the persons of a client of a finished run, and the non-members
are persons of the same domain whom no client has; half of them are the
reference of the attacker. The feature of a person is the mean over the person's
images with the final model. The published mean is the row m of the statistics
that the client of DFH sends, in three cases:

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
from scipy import stats

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection
from fedreid_jax.apps.audit.detection import Detection
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import validation
from fedreid_jax.data.federation import Images
from fedreid_jax.training import loaded_run
from fedreid_jax.training.loaded_run import LoadedRun

FEWEST = 8  # persons outside the training
CASES = ('sent', 'same images', 'other images')
NEGATIVE = 'negative control: mean of another client'
SIMULATED = 4000  # least number of members of the positive control
STRANGERS = 200  # non-members who are scored in one repetition of it
CLOSE = 0.03  # largest gap between simulation and theory
_SMALLEST = 1e-6  # standard deviation of a dimension that is not dead

# Mean features of persons, `[P, D]`: over 'every' image of each person, over
# every second image ('even'), and over the other images ('odd').
Side = dict[str, np.ndarray]


class Traced(NamedTuple):
  """Results of the audit."""

  found: dict[str, Detection]  # success by case, and of the negative control
  dimensions: int  # number of dimensions of the features
  effective: float  # number of effective dimensions, the mean over clients
  # AUC by theory for the effective dimensions, the mean over clients.
  expected: float
  simulated: float  # AUC of the positive control
  theory: float  # AUC by theory for the positive control
  failed: tuple[str, ...]  # controls that failed; empty if the audit is valid


def audit(run: LoadedRun, seed: int = 0) -> Traced:
  """Traces the persons of all clients in the means that the clients sent.

  Raises:
    ConfigError: for a run without DFH, with one client, or without persons of a
      client's domain outside the training.
  """
  clients = run.federation.clients
  kept = loaded_run.statistics_sent(run)
  if kept is None or len(clients) < 2:
    raise errors.ConfigError(
      'no statistics of DFH of two or more clients',
      run.config.name,
      'give a run whose clients send them, as with configs/dfh.py',
    )
  means = np.asarray(kept)[:, 0]
  strangers = [_persons_of(run, *_strangers(run, c)) for c in clients]
  members = [
    _persons_of(run, c.images(), c.labels, c.modalities) for c in clients
  ]
  found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {
    case: [] for case in (*CASES, NEGATIVE)
  }
  for k, (own, others) in enumerate(zip(members, strangers, strict=True)):
    elsewhere = members[(k + 1) % len(clients)]['every'].mean(0)
    for case, mean, kind in (
      (CASES[0], means[k], 'every'),
      (CASES[1], own['every'].mean(0), 'every'),
      (CASES[2], own['even'].mean(0), 'odd'),
      (NEGATIVE, elsewhere, 'every'),
    ):
      # The reference and the non-members that are scored are different persons:
      # whitening by the scored ones would bias their scores.
      known, asked = others[kind][::2], others[kind][1::2]
      inside = scores(own[kind], mean, known)
      found[case].append((inside, scores(asked, mean, known)))
  # Scores are standardised by the reference of each client and can be pooled.
  pooled = {
    case: tuple(np.concatenate(side) for side in zip(*pairs, strict=True))
    for case, pairs in found.items()
  }
  return _judged(members, strangers, pooled, seed)


def _judged(members, strangers, pooled, seed: int) -> Traced:
  size = members[0]['every'].shape[1]
  numbers = [len(own['every']) for own in members]
  known = [others['every'][::2] for others in strangers]
  effective = [effective_dimensions(rows) for rows in known]
  expected = [
    auc(dims, number, 1 / len(rows))
    for dims, number, rows in zip(effective, numbers, known, strict=True)
  ]
  # The simulation has the numbers of the first client.
  persons, reference = numbers[0], len(known[0])
  simulated = simulate(size, persons, reference, seed)
  theory = auc(float(size), persons, 1 / reference)
  failed: list[str] = []
  if abs(simulated - theory) > CLOSE:
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


def _strangers(
  run: LoadedRun, client: ClientData
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Images, persons and modalities that no client has, of a domain."""
  for target in run.federation.targets:
    named: Images = target.images
    own = client.name in (named.name, named.name.removeprefix(validation.NAME))
    if own and target.task == 'retrieval':
      if len(np.unique(named.identities)) >= FEWEST:
        return named.images(), named.identities, named.modalities
  raise errors.ConfigError(
    f'fewer than {FEWEST} persons of the domain {client.name} are outside the '
    'training',
    'data.targets',
    'train with evaluation.validation, or give --set=data.targets=... with '
    'the domains of the clients and --set=data.allow_overlap=True',
  )


def _persons_of(
  run: LoadedRun,
  images: np.ndarray,
  persons: Int[np.ndarray, ' M'],
  modalities: Int[np.ndarray, ' M'],
) -> Side:
  space = loaded_run.statistics_of(run).space
  features = run.features(images, space, modalities)
  groups = [features[persons == person] for person in np.unique(persons)]
  # The case of other images needs an image on each side.
  groups = [own for own in groups if len(own) > 1]
  starts = {'every': (0, 1), 'even': (0, 2), 'odd': (1, 2)}
  return {
    kind: np.asarray([own[first::step].mean(0) for own in groups])
    for kind, (first, step) in starts.items()
  }


def auc(dimensions: float, persons: int, variance: float = 0.0) -> float:
  """The expected AUC for isotropic features in `D` dimensions, `J` persons.

  The variance of the noise on the mean is in units of the features' variance.
  """
  gap = dimensions / persons
  gap /= np.sqrt(dimensions * (1 / persons + variance))
  return float(stats.norm.cdf(gap / np.sqrt(2)))


def scores(
  persons: Float[np.ndarray, 'P D'],
  published: Float[np.ndarray, ' D'],
  reference: Float[np.ndarray, 'R D'],
) -> Float[np.ndarray, ' P']:
  """Returns T of each person, standardised by the scores of the reference."""
  centre, spread = reference.mean(0), reference.std(0)
  # Dead dimensions get the weight 0. The maximum keeps the division, which
  # np.where evaluates everywhere, from a division by zero.
  alive = spread > _SMALLEST
  scale = np.where(alive, 1 / np.maximum(spread, _SMALLEST), 0.0)

  def whitened(features: np.ndarray) -> np.ndarray:
    return ((features - centre) * scale).astype(np.float64)

  towards = whitened(published)
  # Standardised scores of several clients can be pooled.
  found, usual = whitened(persons) @ towards, whitened(reference) @ towards
  return (found - usual.mean()) / max(float(usual.std()), 1e-12)


def effective_dimensions(reference: Float[np.ndarray, 'R D']) -> float:
  """The effective number of dimensions of whitened features."""
  spread = reference.std(0)
  alive = reference[:, spread > _SMALLEST].astype(np.float64)
  rows = (alive - alive.mean(0)) / alive.std(0)
  # The sum of the eigenvalues is the number of dimensions, since whitened ones
  # have variance 1. The sum of the squared eigenvalues of a covariance of R
  # persons is too large by (sum l)^2 / R, which is subtracted.
  total = rows.shape[1]
  squared = np.square(rows.T @ rows / len(rows)).sum() - total**2 / len(rows)
  return float(np.clip(total**2 / max(squared, total), 1.0, total))


def simulate(dimensions: int, persons: int, reference: int, seed: int) -> float:
  """The mean AUC for isotropic features, the positive control."""
  rng = np.random.default_rng(seed)
  areas = []
  for _ in range(-(-SIMULATED // persons)):
    members = rng.standard_normal((persons, dimensions))
    known = rng.standard_normal((reference, dimensions))
    strangers = rng.standard_normal((STRANGERS, dimensions))
    mean = members.mean(0)
    inside = scores(members, mean, known)
    areas.append(detection.auc(inside, scores(strangers, mean, known)))
  return float(np.mean(areas))
