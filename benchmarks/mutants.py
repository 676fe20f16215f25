"""Bugs of one line that the tests must notice.

  python -m benchmarks.mutants [--mutant I]

Every mutation is applied to a temporary copy of the package and of the tests,
where the test files named for it run until the first failure. A mutation that
no test fails for has survived: a test is missing, or the two texts mean the
same. The exit status is 1 if any survived.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import app, flags

ROOT = Path(__file__).parents[1]
COPIED = ('fedreid_jax', 'tests', 'configs', 'benchmarks', 'launchers')
LIMIT_S = 300.0  # a mutation may make a loop endless

ONLY = flags.DEFINE_integer('mutant', None, 'Run this mutation, from 0.')


class Mutant(NamedTuple):
  """A bug.

  Attributes:
    file: of the package.
    old: text that occurs once in it.
    new: text instead.
    tests: files under `tests/`, with a blank between them.
  """

  file: str
  old: str
  new: str
  tests: str


MUTANTS = (
  Mutant(
    'core/aggregation.py',
    'real = (uploads.index >= 0) & uploads.finite',
    'real = uploads.finite',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    'real = (uploads.index >= 0) & uploads.finite',
    'real = uploads.index >= 0',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    '.reshape(leaf.shape[0], -1).all(axis=1)',
    '.reshape(leaf.shape[0], -1).any(axis=1)',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    'rows / rows.sum(axis=1, keepdims=True)',
    'rows / rows.sum(axis=0, keepdims=True)',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    'jnp.where(members, raw, 0.0)',
    'jnp.where(members, raw, 1.0)',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    '~(finite & (rows != 0).any(axis=1))',
    '~(finite | (rows != 0).any(axis=1))',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    'jnp.where(bad[:, None], sizes, rows)',
    'jnp.where(bad[:, None], rows, sizes)',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    "first if rule == 'first_client'",
    "first if rule != 'first_client'",
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    'jnp.where(w == 0.0, 0.0, w * v[None])',
    'w * v[None]',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    '(weight != 0.0).any(axis=0)',
    '(weight != 0.0).all(axis=0)',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    'mean + rest * old',
    'mean + old',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/aggregation.py',
    'return -jnp.where(share > 0',
    'return jnp.where(share > 0',
    'core/test_uploads.py',
  ),
  Mutant(
    'core/server_round.py',
    'order.argmin(axis=1)',
    'order.argmax(axis=1)',
    'core/test_server_round.py',
  ),
  Mutant(
    'core/server_round.py',
    'jnp.arange(num_groups)[:, None]) & valid[None]',
    'jnp.arange(num_groups)[:, None])',
    'core/test_simulation.py',
  ),
  Mutant(
    'core/batch_stats.py',
    'share * (1.0 - share)',
    'share * share',
    'core/test_batch_stats.py',
  ),
  Mutant(
    'core/batch_stats.py',
    'found.count >= FEWEST_IMAGES',
    'found.count > FEWEST_IMAGES',
    'core/test_batch_stats.py',
  ),
  Mutant(
    'core/batch_stats.py',
    'share = b.count',
    'share = a.count',
    'core/test_batch_stats.py',
  ),
  Mutant(
    'core/cohort.py',
    '(-sizes[k], k)',
    '(sizes[k], k)',
    'core/test_cohort.py',
  ),
  Mutant(
    'core/cohort.py',
    'math.ceil(fraction',
    'math.floor(fraction',
    'core/test_cohort.py',
  ),
  Mutant(
    'core/cohort.py',
    'for k in sorted(members)',
    'for k in members',
    'core/test_cohort.py',
  ),
  Mutant(
    'core/cohort.py',
    'most.max()',
    'most.min()',
    'core/test_cohort.py',
  ),
  Mutant(
    'core/cohort.py',
    'rows[lane, :steps] = plan.rows + placement.first_row[k]',
    'rows[lane, :steps] = plan.rows',
    'core/test_cohort.py',
  ),
  Mutant(
    'core/optimizers.py',
    'params[name] - (lr',
    'params[name] + (lr',
    'core/test_optimizers.py',
  ),
  Mutant(
    'core/optimizers.py',
    'cotangent + weight_decay',
    'cotangent - weight_decay',
    'core/test_optimizers.py',
  ),
  Mutant(
    'core/optimizers.py',
    'buffer if nesterov else',
    'buffer if not nesterov else',
    'core/test_accumulated.py',
  ),
  Mutant(
    'core/optimizers.py',
    '(jnp.floor(round_) + 1)',
    'jnp.floor(round_)',
    'core/test_optimizers.py',
  ),
  Mutant(
    'core/optimizers.py',
    'int(m) if m >= 1',
    'int(m) if m > 1',
    'core/test_optimizers.py',
  ),
  Mutant(
    'core/local_step.py',
    'task.num_steps - 1',
    'task.num_steps',
    'algorithms/test_fedsgd.py',
  ),
  Mutant(
    'core/param_filter.py',
    'if n not in chosen',
    'if n in chosen',
    'core/test_param_filter.py',
  ),
  Mutant(
    'core/prng.py',
    "'big') >> 1",
    "'little') >> 1",
    'core/test_cohort.py',
  ),
  Mutant(
    'core/prng.py',
    '[seed, int(stream), round_, uid]',
    '[seed, int(stream), 0, uid]',
    'core/test_cohort.py',
  ),
  Mutant(
    'core/compose.py',
    'if len(owners) > 1',
    'if len(owners) > 2',
    'core/test_compose.py',
  ),
  Mutant(
    'core/round_log.py',
    'np.median(means)',
    'np.mean(means)',
    'core/test_round_log.py',
  ),
  Mutant(
    'core/round_log.py',
    'v[valid].sum()',
    'v.sum()',
    'core/test_round_log.py',
  ),
  Mutant(
    'losses/circle.py',
    'same & real & ~jnp.eye(len(labels), dtype=bool)',
    'same & real',
    'losses/test_circle.py',
  ),
  Mutant(
    'losses/circle.py',
    '/ (num * num)',
    '/ num',
    'losses/test_circle.py',
  ),
  Mutant(
    'losses/dense_triplet.py',
    'positive - negative + margin',
    'negative - positive + margin',
    'losses/test_dense_triplet.py',
  ),
  Mutant(
    'losses/discrepancy.py',
    'count * (count - 1)',
    'count * count',
    'losses/test_discrepancy.py',
  ),
  Mutant(
    'losses/discrepancy.py',
    '(log_a, log_p)',
    '(log_p, log_a)',
    'losses/test_discrepancy.py',
  ),
  Mutant(
    'losses/distill.py',
    'temperature**2 *',
    'temperature *',
    'losses/test_distill.py',
  ),
  Mutant(
    'losses/distill.py',
    '(log_p, log_q)',
    '(log_q, log_p)',
    'losses/test_distill.py',
  ),
  Mutant(
    'losses/embedding_expansion.py',
    '~same & first[None]',
    '~same',
    'losses/test_embedding_expansion.py',
  ),
  Mutant(
    'losses/hallucination.py',
    'jnp.maximum(raw, FLOOR)',
    'jnp.minimum(raw, FLOOR)',
    'losses/test_hallucination.py',
  ),
  Mutant(
    'losses/hallucination.py',
    'lowest = -p',
    'lowest = p',
    'losses/test_hallucination.py',
  ),
  Mutant(
    'losses/identity.py',
    'jnp.where(valid, values, 0.0).sum()',
    'values.sum()',
    'losses/test_identity.py',
  ),
  Mutant(
    'losses/identity.py',
    '/ real.sum(axis=1)',
    '/ real.shape[1]',
    'losses/test_identity.py',
  ),
  Mutant(
    'losses/metric.py',
    'distance, FAR).min(axis=1)',
    'distance, FAR).max(axis=1)',
    'losses/test_metric.py',
  ),
  Mutant(
    'losses/rectification.py',
    'valid & present[labels]',
    'valid',
    'losses/test_rectification.py',
  ),
  Mutant(
    'losses/similarity.py',
    '* (y * y).sum(-1)',
    '* (x * x).sum(-1)',
    'losses/test_similarity.py',
  ),
  Mutant(
    'losses/style.py',
    '(n - enhanced_n)',
    '(enhanced_n - n)',
    'losses/test_style_loss.py',
  ),
  Mutant(
    'losses/weighted_triplet.py',
    'negative, -1.0)',
    'negative, 1.0)',
    'losses/test_weighted_triplet.py',
  ),
  Mutant(
    'losses/weighted_triplet.py',
    'gap > 0',
    'gap < 0',
    'losses/test_weighted_triplet.py',
  ),
  Mutant(
    'evaluation/positions.py',
    "for side in ('left', 'right')",
    "for side in ('right', 'left')",
    'evaluation/test_ranking.py',
  ),
  Mutant(
    'evaluation/positions.py',
    '- nearer > num_equal',
    '- nearer >= num_equal',
    'evaluation/test_ranking.py',
  ),
  Mutant(
    'evaluation/positions.py',
    '(drawn < right)',
    '(drawn > right)',
    'evaluation/test_ranking.py',
  ),
  Mutant(
    'evaluation/positions.py',
    'before[:first] |= distance[:first] ==',
    'before[first:] |= distance[first:] ==',
    'evaluation/test_ranking.py',
  ),
  Mutant(
    'evaluation/ranking.py',
    'positions > 0, hits',
    'positions > 1, hits',
    'evaluation/test_ranking.py',
  ),
  Mutant(
    'evaluation/ranking.py',
    '(positions[-1] + 1)',
    '(positions[0] + 1)',
    'evaluation/test_ranking.py',
  ),
  Mutant(
    'evaluation/ranking.py',
    'scores.first < rank',
    'scores.first <= rank',
    'evaluation/test_ranking.py',
  ),
  Mutant(
    'evaluation/rerank.py',
    'common > 2 / 3',
    'common >= 2 / 3',
    'evaluation/test_rerank.py',
  ),
  Mutant(
    'evaluation/rerank.py',
    'options.k1 / 2)) + 1',
    'options.k1 / 2))',
    'evaluation/test_rerank.py',
  ),
  Mutant(
    'evaluation/distances.py',
    '- 2.0 * products, 0.0',
    '- products, 0.0',
    'evaluation/test_distances.py',
  ),
  Mutant(
    'evaluation/distances.py',
    '* BLOCK >= chunk',
    '* BLOCK > chunk',
    'evaluation/test_distances.py',
  ),
  Mutant(
    'evaluation/gallery_sampling.py',
    '.ravel() - 1',
    '.ravel()',
    'evaluation/test_gallery_sampling.py',
  ),
  Mutant(
    'evaluation/half_splits.py',
    'cameras[images] != cameras[query]',
    'cameras[images] == cameras[query]',
    'evaluation/test_half_splits.py',
  ),
  Mutant(
    'evaluation/ensembles.py',
    'len(members) < 2',
    'len(members) < 1',
    'evaluation/test_ensembles.py',
  ),
  Mutant(
    'evaluation/classification.py',
    'axis=1) > 1',
    'axis=1) >= 1',
    'evaluation/test_classification.py',
  ),
)


def mutated(mutant: Mutant, root: Path = ROOT) -> str:
  """Returns the text of the file of a mutant with its bug.

  Raises:
    ValueError: when the old text does not occur exactly once.
  """
  text = Path(root, 'fedreid_jax', mutant.file).read_text()
  if text.count(mutant.old) != 1 or mutant.old == mutant.new:
    raise ValueError(f'{mutant.old!r} in {mutant.file}')
  return text.replace(mutant.old, mutant.new)


def caught(mutant: Mutant, folder: Path) -> bool:
  """Returns whether the tests of a mutant fail.

  Args:
    mutant: the bug.
    folder: copy of the project; its package is as before afterwards.

  Raises:
    RuntimeError: when pytest neither passes nor fails.
  """
  file = Path(folder, 'fedreid_jax', mutant.file)
  before = file.read_text()
  file.write_text(mutated(mutant, folder))
  tests = [f'tests/{name}' for name in mutant.tests.split()]
  command = [sys.executable, '-m', 'pytest', '-x', '-q', '-n', '0', *tests]
  flags_ = ['-p', 'no:cacheprovider']
  env = os.environ | {'PYTHONPATH': str(folder), 'PYTHONDONTWRITEBYTECODE': '1'}
  try:
    done = subprocess.run(
      command + flags_,
      cwd=folder,
      env=env,
      capture_output=True,
      text=True,
      timeout=LIMIT_S,
    )
  except subprocess.TimeoutExpired:
    return True
  finally:
    file.write_text(before)
  if done.returncode not in (0, 1):
    raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
  return done.returncode == 1


def main(argv: Sequence[str]) -> None:
  """Runs the mutations and prints which were caught."""
  del argv
  chosen = range(len(MUTANTS)) if ONLY.value is None else [ONLY.value]
  survived = []
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for part in COPIED:
      ignored = shutil.ignore_patterns('__pycache__')
      shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    shutil.copy(ROOT / 'pyproject.toml', folder)
    for i in chosen:
      start, mutant = time.monotonic(), MUTANTS[i]
      found = caught(mutant, folder)
      if not found:
        survived.append(i)
      print(
        f'{i:3d} {"caught" if found else "SURVIVED":8s} '
        f'{time.monotonic() - start:5.1f} s  {mutant.file}: {mutant.new}',
        flush=True,
      )
  print(f'{len(chosen) - len(survived)} of {len(chosen)} caught', end='')
  print(f', survived: {survived}' if survived else '')
  sys.exit(bool(survived))


if __name__ == '__main__':
  app.run(main)
