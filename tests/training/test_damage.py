"""Random damage of a work directory never changes a figure in silence."""

import shutil
import warnings

import numpy as np
import pytest

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.core import trees
from fedreid_jax.training.files import run_files

REFUSALS = (errors.IntegrityError, errors.DataError, errors.ConfigError)
ROUNDS = 4  # of `finished`


def damage(rng, folder):
  """Flips a bit of a random file, or cuts or empties it; returns the file."""
  files = sorted(p for p in folder.rglob('*') if p.is_file())
  path = files[rng.integers(len(files))]
  content = bytearray(path.read_bytes())
  kind = rng.integers(3)
  if kind == 0 and content:
    content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
  elif kind == 1:
    content = content[: rng.integers(len(content) + 1)]
  else:
    content = bytearray()
  path.write_bytes(content)
  return path


def read(folder):
  """(round, digest of the model, figures) as Python and reports read them."""
  with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter('always', errors.DamagedCheckpointWarning)
    model = fr.load(folder)
  figures = run_files.read(folder)
  told = [
    str(w.message)
    for w in said
    if issubclass(w.category, errors.DamagedCheckpointWarning)
  ]
  return model.step, trees.digest(model.variables), figures, told


def check(folder, draws, seed):
  rng, outcomes = np.random.default_rng(seed), {}
  kept = folder.with_name('kept')
  shutil.copytree(folder, kept)
  digests = {}
  for round_ in (ROUNDS, ROUNDS - 1):
    model = fr.load(folder, checkpoint=round_)
    digests[round_] = trees.digest(model.variables)
  assert len({*digests.values()}) == 2
  whole = run_files.read(folder).results['summary']
  for _ in range(draws):
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    path = damage(rng, folder)
    try:
      round_, digest, figures, told = read(folder)
    except REFUSALS as refused:
      outcome = 'refused'
      assert str(refused.exit_code) in '234'
    else:
      assert digest == digests[round_], path
      outcome = 'unchanged' if round_ == ROUNDS else 'one back'
      assert bool(told) == (outcome == 'one back'), path
      if told:
        assert path.name in told[0] and f'round {round_} is used' in told[0]
      if path.name != 'results.json':
        assert figures.results['summary'] == whole
    outcomes[outcome] = outcomes.get(outcome, 0) + 1
  return outcomes


@pytest.mark.slow
def test_damage_is_told(finished):
  outcomes = check(finished, 12, seed=1)
  assert outcomes['one back'] > 0
