"""The bugs of `benchmarks.mutants`, each a change of one line.

`BUGS` lists them by the file that has the bug and the tests that must fail: the
text that occurs once in the file, and the text that replaces it.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
  """A bug.

  Attributes:
    file: of the package.
    old: text that occurs once in it.
    new: text instead.
    tests: file under `tests/`.
  """

  file: str
  old: str
  new: str
  tests: str


BUGS = (
  (
    ('method/aggregation.py', 'round/test_uploads.py'),
    (
      ('real = (upload.index >= 0) & upload.finite', 'real = upload.finite'),
      (
        'real = (upload.index >= 0) & upload.finite',
        'real = upload.index >= 0',
      ),
      (
        'all_finite((upload.shared, upload.messages))',
        'all_finite(upload.shared)',
      ),
      (
        'rows / rows.sum(axis=1, keepdims=True)',
        'rows / rows.sum(axis=0, keepdims=True)',
      ),
      ('jnp.where(members, raw, 0.0)', 'jnp.where(members, raw, 1.0)'),
      (
        '~(finite & (rows != 0).any(axis=1))',
        '~(finite | (rows != 0).any(axis=1))',
      ),
      (
        'jnp.where(bad[:, None], sizes, rows)',
        'jnp.where(bad[:, None], rows, sizes)',
      ),
      ("first if rule == 'first_client'", "first if rule != 'first_client'"),
      ('jnp.where(w == 0.0, 0.0, w * v[None])', 'w * v[None]'),
      ('mean + rest * old', 'mean + old'),
      ('return -jnp.where(share > 0', 'return jnp.where(share > 0'),
    ),
  ),
  (
    ('round/server/fold.py', 'round/test_fold.py'),
    (
      ('trees.select(valid, added', 'trees.select(finite, added'),
      ('jnp.where(trusted, _inverse(found), 0.0)', '_inverse(found)'),
      ('not in sums.model) | fell_back', 'not in sums.model) & fell_back'),
    ),
  ),
  (
    ('round/server/server_round.py', 'round/test_server_round.py'),
    (
      ('order.argmin(axis=1)', 'order.argmax(axis=1)'),
      (
        'jnp.arange(num_groups)[:, None]) & valid[None]',
        'jnp.arange(num_groups)[:, None])',
      ),
    ),
  ),
  (
    ('method/batch_stats.py', 'method/test_batch_stats.py'),
    (
      ('share * (1.0 - share)', 'share * share'),
      ('found.count >= FEWEST_IMAGES', 'found.count > FEWEST_IMAGES'),
      ('share = b.count', 'share = a.count'),
    ),
  ),
  (
    ('round/cohort.py', 'round/test_cohort.py'),
    (
      ('(-sizes[k], k)', '(sizes[k], k)'),
      ('math.ceil(fraction', 'math.floor(fraction'),
      ('for k in sorted(members)', 'for k in members'),
      ('most.max()', 'most.min()'),
      (
        'rows[lane, :steps] = plan.rows + placement.first_row[k]',
        'rows[lane, :steps] = plan.rows',
      ),
    ),
  ),
  (
    ('method/optimizers.py', 'method/test_optimizers.py'),
    (
      ('params[name] - (lr', 'params[name] + (lr'),
      ('cotangent + weight_decay', 'cotangent - weight_decay'),
    ),
  ),
  (
    ('method/optimizers.py', 'round/test_accumulated.py'),
    (('buffer if nesterov else', 'buffer if not nesterov else'),),
  ),
  (
    ('method/optimizers.py', 'method/test_optimizers.py'),
    (
      ('(jnp.floor(round_) + 1)', 'jnp.floor(round_)'),
      ('int(m) if m >= 1', 'int(m) if m > 1'),
    ),
  ),
  (
    ('round/local_step.py', 'algorithms/test_fedsgd.py'),
    (('task.num_steps - 1', 'task.num_steps'),),
  ),
  (
    ('core/trees.py', 'core/test_trees.py'),
    (
      ('if n not in chosen', 'if n in chosen'),
      ('jnp.isfinite(leaf).all()', 'jnp.isfinite(leaf).any()'),
      (
        'optimization_barrier(stacked).all()',
        'optimization_barrier(stacked).any()',
      ),
      ('jax.lax.optimization_barrier(stacked).all()', 'stacked.all()'),
    ),
  ),
  (
    ('core/prng.py', 'round/test_cohort.py'),
    (
      ("'big') >> 1", "'little') >> 1"),
      ('[seed, int(stream), round_, uid]', '[seed, int(stream), 0, uid]'),
    ),
  ),
  (
    ('round/compose.py', 'round/test_compose.py'),
    (('if len(owners) > 1', 'if len(owners) > 2'),),
  ),
  (
    ('round/round_log.py', 'round/test_round_log.py'),
    (
      ('np.median(means)', 'np.mean(means)'),
      ('v[valid].sum()', 'v.sum()'),
    ),
  ),
  (
    ('losses/metric.py', 'losses/test_metric.py'),
    (
      ('same & real & ~jnp.eye(len(labels), dtype=bool)', 'same & real'),
      ('/ (num * num)', '/ num'),
      ('distance, FAR).min(axis=1)', 'distance, FAR).max(axis=1)'),
      ('valid & present[labels]', 'valid'),
      ('* (y * y).sum(-1)', '* (x * x).sum(-1)'),
      ('negative, -1.0)', 'negative, 1.0)'),
      ('gap > 0', 'gap < 0'),
    ),
  ),
  (
    ('losses/cross_modal.py', 'losses/test_cross_modal.py'),
    (
      ('positive - negative + margin', 'negative - positive + margin'),
      ('count * (count - 1)', 'count * count'),
      ('(log_a, log_p)', '(log_p, log_a)'),
      ('~same & first[None]', '~same'),
    ),
  ),
  (
    ('losses/hallucination.py', 'losses/test_hallucination.py'),
    (
      ('jnp.maximum(raw, FLOOR)', 'jnp.minimum(raw, FLOOR)'),
      ('lowest = -p', 'lowest = p'),
    ),
  ),
  (
    ('losses/identity.py', 'losses/test_identity.py'),
    (
      ('jnp.where(valid, values, 0.0).sum()', 'values.sum()'),
      ('/ real.sum(axis=1)', '/ real.shape[1]'),
      ('temperature**2 *', 'temperature *'),
      ('(log_p, log_q)', '(log_q, log_p)'),
    ),
  ),
  (
    ('losses/style.py', 'losses/test_style_loss.py'),
    (('(n - enhanced_n)', '(enhanced_n - n)'),),
  ),
  (
    ('evaluation/ranking.py', 'evaluation/test_ranking.py'),
    (
      ("for side in ('left', 'right')", "for side in ('right', 'left')"),
      ('- nearer > num_equal', '- nearer >= num_equal'),
      ('(drawn < right)', '(drawn > right)'),
      (
        'before[:first] |= distance[:first] ==',
        'before[first:] |= distance[first:] ==',
      ),
      ('positions > 0, hits', 'positions > 1, hits'),
      ('(positions[-1] + 1)', '(positions[0] + 1)'),
      ('scores.first[counted] < rank', 'scores.first[counted] <= rank'),
    ),
  ),
  (
    ('evaluation/distances.py', 'evaluation/test_distances.py'),
    (
      ('common > 2 / 3', 'common >= 2 / 3'),
      ('options.k1 / 2)) + 1', 'options.k1 / 2))'),
      ('- 2.0 * products, 0.0', '- products, 0.0'),
      ('* BLOCK >= chunk', '* BLOCK > chunk'),
    ),
  ),
  (
    ('data/benchmark/trials.py', 'data/test_trials.py'),
    (
      ('.ravel() - 1', '.ravel()'),
      (
        'cameras[images] != cameras[query]',
        'cameras[images] == cameras[query]',
      ),
    ),
  ),
  (
    ('evaluation/explanation.py', 'evaluation/test_explanation.py'),
    (
      ('u = vectors[::-1] /', 'u = vectors /'),
      ('Side(parts,', 'Side(-parts,'),
      (
        'return Explanation(similarity, way, *sides)',
        'return Explanation(similarity, way, *sides[::-1])',
      ),
      (
        'turned = [x[:, :, ::-1] for x in values[half:]]',
        'turned = values[half:]',
      ),
      ('flow = flow + weights @ flow', 'flow = flow + flow @ weights'),
      ('images[::2], modalities[::2]', 'images[:2], modalities[::2]'),
      (
        'explain(shuffled(variables), images[:2]',
        'explain(variables, images[:2]',
      ),
    ),
  ),
  (
    ('evaluation/features.py', 'evaluation/test_features.py'),
    (('len(members) < 2', 'len(members) < 1'),),
  ),
  (
    (
      'evaluation/evaluators/classification.py',
      'evaluation/evaluators/test_classification.py',
    ),
    (('axis=1) > 1', 'axis=1) >= 1'),),
  ),
  (
    ('evaluation/evaluators/roc.py', 'evaluation/evaluators/test_roc.py'),
    (
      ('curve.fpr <= rate', 'curve.fpr < rate'),
      ("(different), threshold, 'right'", '(different), threshold'),
      ('valid & ~same', '~same'),
    ),
  ),
  (
    ('round/round_log.py', 'round/test_round_log.py'),
    (('used = used[np.argsort(lanes[used])]', 'used = used[::-1]'),),
  ),
  (
    ('training/callbacks.py', 'training/test_callbacks.py'),
    (
      ('if one is self._all[0]', 'if one is self._all[-1]'),
      ('self._failed.append(one)', 'self._failed.clear()'),
      ('self.ending() != FAILED', 'self.ending() == FAILED'),
      ('if found and error is None', 'if found and error'),
    ),
  ),
  (
    ('training/files/atomic.py', 'training/test_atomic.py'),
    (('own <= round_', 'own < round_'),),
  ),
  (
    ('training/callbacks.py', 'training/test_trackers.py'),
    (('self.round if self.resumed else -1', 'self.round'),),
  ),
  (
    ('training/trackers.py', 'training/test_trackers.py'),
    (('measured.round > self', 'measured.round >= self'),),
  ),
  (
    (
      'training/trackers.py',
      'training/test_to_tensorboard.py',
    ),
    (('self._event(start.kept + 1)', 'self._event(start.kept)'),),
  ),
  (
    ('algorithms/fedatt.py', 'algorithms/test_fedatt.py'),
    (('ctx.uploaded[name] - start', 'ctx.uploaded[name] + start'),),
  ),
  (
    ('algorithms/fedbuff.py', 'algorithms/test_fedbuff.py'),
    (
      ('** -options.exponent', '** options.exponent'),
      ('jnp.maximum(stale, 1) - 1', 'jnp.maximum(stale, 1)'),
    ),
  ),
  (
    ('algorithms/robust.py', 'algorithms/test_robust.py'),
    (
      ('pull.sum() * _norm(', '_norm('),
      ('stays * own /', '(1 - stays) * own /'),
    ),
  ),
  (
    ('models/layers/styles.py', 'algorithms/test_crossstyle.py'),
    (
      ('own.mean[partners], std[partners]', 'own.mean, std[partners]'),
      ('*style, CROSS_EPSILON, detached=False', '*style, CROSS_EPSILON'),
    ),
  ),
  (
    ('data/colours.py', 'data/test_colours.py'),
    (
      (
        'factor * image + (1.0 - factor) * other',
        '(1.0 - factor) * image + factor * other',
      ),
      ('luminance(image).mean()', 'luminance(image).max()'),
      ('jax.lax.switch(which,', 'jax.lax.switch(place,'),
    ),
  ),
  (
    ('data/augment.py', 'data/test_colours.py'),
    (('JITTER = 6', 'JITTER = 2'),),
  ),
  (
    ('models/backbones/vit.py', 'models/test_vit.py'),
    (
      (
        'jnp.concatenate([tokens[:, :1], patches]',
        'jnp.concatenate([patches[:, :1], patches]',
      ),
    ),
  ),
  (
    ('apps/sites/remote.py', 'apps/sites/test_strangers.py'),
    (
      ('examples != facts.images', 'examples > facts.images'),
      ('not trained <= steps', 'not 0 <= steps'),
    ),
  ),
  (
    ('apps/sites/worker.py', 'apps/sites/test_strangers.py'),
    (('oldest <= start <= round_', 'start <= round_'),),
  ),
  (
    ('training/picture.py', 'training/test_picture.py'),
    (
      ('if not right else', 'if right else'),
      ('self._targets.add(target.name)', 'self._targets.add(model)'),
    ),
  ),
)

MUTANTS = tuple(
  Mutant(file, old, new, tests)
  for (file, tests), bugs in BUGS
  for old, new in bugs
)
