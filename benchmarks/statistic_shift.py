"""How far a target is from the statistics that DFH mixes.

  python -m benchmarks.statistic_shift WORKDIR [WORKDIR...]

DFH samples the means of channels around those of the clients' features, with
the variance of the identities' means. For the global model of each run the
program prints, for every target, squared differences of means over the clients'
variance within identities, averaged over the channels that vary:

  shift     of the target's mean to the mean of the clients' means
  clients   of the clients' means to their mean: the variance that is mixed
  persons   of identities' means to the client's mean: the variance sampled
  along     percent of the shift that is in the plane of the clients' means
  moved     of the mean of a target `mall+noise` to that of `mall`: the part of
            the shift that the kind of shift causes on the same persons
  spread    logarithm of the standard deviation of the target over that of the
            clients, root mean square over channels

A method that mixes the statistics of clients prepares for shifts that are as
large as `clients` and `persons`, and that are along them.
"""

import sys
from pathlib import Path

import numpy as np
from absl import app, logging

from fedreid_jax.config import load as config_lib
from fedreid_jax.training import loaded_run

COLUMNS = ('shift', 'clients', 'persons', 'along', 'moved', 'spread')
DEAD = 1e-4  # part of the mean variance below which a channel does not vary


def measured(run: loaded_run.LoadedRun) -> dict[str, dict[str, float]]:
  """Returns the columns by target."""
  which = 'feature'
  own = [run.features(c.images(), which) for c in run.federation.clients]
  means = np.stack([x.mean(0) for x in own])  # [N, D]
  within, persons = [], []
  for client, found in zip(run.federation.clients, own, strict=True):
    each = [found[client.labels == y] for y in np.unique(client.labels)]
    within.append(np.mean([x.var(0) for x in each], 0))
    persons.append(np.var([x.mean(0) for x in each], 0))
  alive = np.mean(within, 0) > DEAD * np.mean(within)
  unit = np.mean(within, 0)[alive] ** 0.5
  centre = means.mean(0)
  deviations = ((means - centre)[:, alive]) / unit
  plane = np.linalg.svd(deviations, full_matrices=False)[2][: len(means) - 1]
  spreads = np.log([x[:, alive].std(0) for x in own])
  rows, plain = {}, {}
  for target in run.federation.targets:
    found = run.features(target.images.images(), which)
    shift = ((found.mean(0) - centre)[alive]) / unit
    plain.setdefault(target.name.partition('+')[0], shift)
    moved = shift - plain[target.name.partition('+')[0]]
    spread = np.log(found[:, alive].std(0) + 1e-9) - spreads.mean(0)
    values = (
      np.mean(shift**2),
      np.mean(deviations**2),
      np.mean(np.mean(persons, 0)[alive] / unit**2),
      100 * np.sum((plane @ shift) ** 2) / np.sum(shift**2),
      np.mean(moved**2),
      np.mean(spread**2) ** 0.5,
    )
    rows[target.name] = dict(zip(COLUMNS, map(float, values), strict=True))
  return rows


def main(argv: list[str]) -> None:
  """Prints a row for every target of every run."""
  logging.set_verbosity('error')  # checkpoints report each file
  for folder in map(Path, argv[1:]):
    config = config_lib.load_saved(folder.absolute())
    run = loaded_run.load(config, folder.absolute())
    print(f'{folder.name}: {"+".join(c.name for c in run.federation.clients)}')
    print(f'{"target":<22}', *(f'{name:>8}' for name in COLUMNS))
    for target, row in measured(run).items():
      print(f'{target:<22}', *(f'{x:8.2f}' for x in row.values()))


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
