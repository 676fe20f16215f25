"""Warnings of a run that diverges, and its end when it cannot recover."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData
from fedreid_jax.training.files import recorder
from fedreid_jax.training.reports import divergence
from fedreid_jax.training.reports.progress import Progress

MAX_BAD_ROUNDS = 3  # in a row
# Of a cohort, in a bad round: with one faulty client of a hundred, most rounds
# of a large cohort lose an update, and the model does not diverge.
BAD_SHARE = 0.1


class Monitor:
  """Checks the rounds of a run."""

  def __init__(
    self,
    config,
    record: recorder.Recorder,
    clients: Sequence[ClientData],
    progress: Progress,
  ):
    """Monitors a run.

    Args:
      config: all of it.
      record: prints and stores warnings.
      clients: of the run.
      progress: of the run, in which findings are stored.
    """
    self._config, self._record = config, record
    self._clients, self._progress = clients, progress

  def check_weights(self, fell_back: bool, stayed: bool) -> None:
    """Reports a round whose aggregation weights could not be used."""
    if fell_back:
      self._record.say(
        f'round {self._progress.done}: weights are zero or not finite, '
        'weights by size are used instead'
      )
    if stayed:
      self._record.say(
        f'round {self._progress.done}: weights are zero, not finite or beyond '
        'their bound, the model stays'
      )

  def warn_once(self, warnings: Iterable[str]) -> None:
    """Reports warnings of components, each once per run."""
    for what in warnings:
      if what not in [w['warning'] for w in self._progress.warnings]:
        self._warn(what)

  def check_updates(
    self, lost: list[str], far: Sequence[str], cohort: int
  ) -> None:
    """Reports clients whose update is not finite or out of range.

    Args:
      lost: names of these clients.
      far: names of those whose update is finite, but out of range of the sums.
      cohort: number of clients of the round.

    Raises:
      DivergedError: after `MAX_BAD_ROUNDS` rounds in a row in which at least
        `BAD_SHARE` of the cohort was lost.
    """
    state = self._progress
    bad = lost and len(lost) >= BAD_SHARE * cohort
    state.bad_rounds = state.bad_rounds + 1 if bad else 0
    broken = [name for name in lost if name not in far]
    for names, what in ((broken, 'not finite'), (far, 'out of range')):
      if names:
        self._record.say(
          f'round {state.done}: the update of {", ".join(names)} is {what}; '
          'left out, weights renormalised'
        )
    if state.bad_rounds >= MAX_BAD_ROUNDS:
      what = 'out of range' if far else 'not finite'
      raise errors.DivergedError(
        f'{state.bad_rounds} rounds in a row with an update that is {what} '
        f'({", ".join(lost)})',
        f'round {state.done}',
        divergence.to_lower(self._config),
      )

  def check_loss(
    self, log: dict[str, Any], results: Callable[[], dict[str, Any]]
  ) -> None:
    """Warns once of a diverging model.

    Args:
      log: of the round.
      results: returns the content of results.json.

    Raises:
      DivergedError: when the model cannot recover.
    """
    if 'loss' not in log['metrics']:  # no client has a valid upload
      return
    state = self._progress
    here = [self._clients[k] for k in log['clients'][log['valid']]]
    images = sum(c.num_images for c in here)
    guessed = sum(c.num_images / c.num_identities for c in here)
    guess = self._guess(log['metrics'], here)
    state.course, found = divergence.follow(
      state.course,
      log['metrics']['loss'],
      log['median_loss'],
      log['metrics']['accuracy'],
      100.0 * guessed / images,
      guess,
    )
    if guess and state.done == self._config.rounds:
      if worse := guess.worse(divergence.WORSE):
        found = found or divergence.Finding(
          f'the last round is worse than an untrained model: {worse}', False
        )
    if found is None:
      return
    fix = self._warn(found.what, shown=not found.fatal)
    if found.fatal:
      # The round does not count: a resumed run repeats it.
      self._record.results(results() | {'rounds': state.done - 1})
      raise errors.DivergedError(found.what, f'round {state.done}', fix)

  def _guess(
    self, metrics: dict[str, float], here: Sequence[ClientData]
  ) -> divergence.Guess | None:
    if not self._config.loss.identity or 'identity' not in metrics:
      return None
    entropy = sum(c.num_images * math.log(c.num_identities) for c in here)
    images = sum(c.num_images for c in here)
    return divergence.Guess(metrics['identity'], entropy / images)

  def _warn(self, what: str, shown: bool = True) -> str:
    """Records a warning, prints it if `shown`, and returns the fix."""
    done = self._progress.done
    fix = divergence.to_lower(self._config)
    warning = {'warning': what, 'fix': fix}
    self._record.event(done, 'warning', warning)
    self._progress.warnings.append({'round': done, **warning})
    if shown:
      self._record.say(f'warning: {what} — round {done} — {fix}')
    return fix
