"""The timetable of a run from its configuration."""

import functools
from collections.abc import Sequence

from fedreid_jax.config import schema
from fedreid_jax.core import prng
from fedreid_jax.core.secret import Secret
from fedreid_jax.core.types import ClientData
from fedreid_jax.round.cohort import availability, cohort
from fedreid_jax.round.cohort.timetable import Rules, Timetable


def make(
  config,
  clients: Sequence[ClientData],
  planner: cohort.Planner,
  model_bytes: int,
  max_staleness: int = 0,
  secret: Secret | None = None,
) -> Timetable | None:
  """Returns the timetable, None if no field of `availability` is set.

  Args:
    config: the configuration of the run.
    clients: in canonical order.
    planner: of their batches.
    model_bytes: bytes of the shared parameters.
    max_staleness: largest staleness of an upload that the method uses.
    secret: of the run, from which the cohorts then follow.

  Raises:
    ConfigError: for a file that cannot be used.
  """
  given = config.availability
  if schema.is_default(config, 'availability'):
    return None
  uids = [prng.client_uid(client.name) for client in clients]
  if given.file:
    names = [client.name for client in clients]
    available = availability.listed(given.file, names)
  else:
    available = availability.daily(config.seed, uids, given.mean, given.swing)
  devices = availability.Devices(
    given.step_s, given.speed_spread, given.bandwidth, given.bandwidth_spread
  )

  @functools.cache
  def seconds(client: int) -> float:
    steps = planner.num_steps(client)
    # The model is sent to the client and back.
    sent = 2 * model_bytes
    return devices.seconds(config.seed, uids[client], steps, sent)

  rules = Rules(
    size=cohort.size(len(clients), config.fraction),
    over_selection=given.over_selection,
    deadline_s=given.deadline_s,
    in_flight=given.in_flight,
    max_staleness=max_staleness,
  )
  return Timetable(rules, secret or config.seed, uids, available, seconds)
