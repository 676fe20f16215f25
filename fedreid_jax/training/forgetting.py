"""A run without some of its clients and persons (`data.without`).

The exact way repeats the run on the other images. Two runs on one machine have
equal bits, so the result is that of a run that never had the others. Rounds
before the others took part need not be repeated if the run has a checkpoint
from there: `start` says which one, and 0 where any round may have depended on
them. The approximate way trains some more rounds from the models of the run.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.config import load, parsing, validation
from fedreid_jax.config.configuration import Config
from fedreid_jax.core.types import ClientData, ClientState
from fedreid_jax.data import departures
from fedreid_jax.data import load as data_lib
from fedreid_jax.data.federation import Federation
from fedreid_jax.data.synthetic import versions
from fedreid_jax.method.component import judges
from fedreid_jax.training import build, earlier_data, loop
from fedreid_jax.training.files import (
  atomic,
  checkpoint,
  recorder,
  run_files,
  sealed,
  steps,
)
from fedreid_jax.training.reports import monitor, report


class Left(NamedTuple):
  """A run, and what is left of it without some clients and persons.

  Attributes:
    workdir: of the run.
    config: of the run.
    federation: of the run.
    names: clients and persons that are left out, as in `data.without`.
    rest: the configuration without them.
    others: the federation without them.
    touched: clients of the run that are gone, or whose images differ.
  """

  workdir: Path
  config: Config
  federation: Federation
  names: tuple[str, ...]
  rest: Config
  others: Federation
  touched: tuple[str, ...]

  @property
  def new(self) -> tuple[str, ...]:
    """Those of `names` that the run itself had."""
    return tuple(n for n in self.names if n not in self.config.data.without)


def leave(
  workdir: Path,
  config: Config,
  clients: Sequence[str] = (),
  persons: Sequence[str] = (),
) -> Left:
  """Leaves clients and persons out of a run; nothing is trained yet.

  Args:
    workdir: of the run.
    config: of the run, perhaps with changed fields.
    clients: names of clients or domains.
    persons: `DOMAIN/PERSON`, or PERSON where one domain has it.

  Raises:
    ConfigError: for an unknown name, if nobody is left, or for a run whose
      repetition would not be the same run.
    IntegrityError: if the run cannot be read.
    DataError: if its images have changed.
  """
  described = recorder.read_object(
    workdir / run_files.DESCRIBED, 'clients', fix='give a run that is whole'
  )
  if (workdir / run_files.SECRET).exists():
    raise errors.ConfigError(
      'draws of this run follow from a secret, so that no other run repeats it',
      str(workdir),
      'train a new run without them, with --config.data.without',
    )
  domains = data_lib.read(config.data, options=_options(config)).domains
  found = [departures.full_name(domains, person) for person in persons]
  # A domain that leaves takes its persons with it.
  found = [name for name in found if name.partition('/')[0] not in clients]
  names = tuple(sorted({*config.data.without, *clients, *found}))
  if names == config.data.without:
    raise errors.ConfigError(
      f'nothing to leave out: {", ".join(names)} left this run before'
      if names
      else 'nothing to leave out',
      str(workdir),
      'give another --client or --identity',
    )
  rest = load.with_fields(config, {'data.without': names})
  # The errors of unknown names before those of the whole run.
  others, federation = _images(rest), _images(config)
  _check_images(workdir, described, federation)
  # Changed fields, such as other targets, have a digest of their own.
  saved = load.load_saved(workdir)
  read = federation if saved.data == config.data else _images(saved)
  _check_digest(workdir, described, read.digest)
  own = touched(federation.clients, others.clients)
  return Left(workdir, config, federation, names, rest, others, own)


def _options(config: Config) -> dict[str, Any]:
  return validation.arguments(config, config.data.source)


def _images(config: Config) -> Federation:
  held_out = config.evaluation.validation
  return data_lib.load(config.data, options=_options(config), held_out=held_out)


def _check_images(
  workdir: Path, described: dict[str, Any], federation: Federation
) -> None:
  """Refuses images, or clients, other than those of the run."""
  before = {row['client']: row['images'] for row in described['clients']}
  now = {one.name: one.num_images for one in federation.clients}
  if before != now:
    raise errors.ConfigError(
      'its clients are not those of its configuration: they were real sites, '
      'or the images have changed',
      str(workdir / run_files.DESCRIBED),
      'let the sites train a new run without the one that leaves',
    )


def _check_digest(
  workdir: Path, described: dict[str, Any], digest: str
) -> None:
  """Refuses files other than those that the run read."""
  if described.get(earlier_data.OWN, digest) != digest:
    raise errors.DataError(
      'the images changed since this run began',
      str(workdir),
      'restore the original files',
    )


def touched(
  before: Sequence[ClientData], after: Sequence[ClientData]
) -> tuple[str, ...]:
  """The clients of `before` that are gone, or have other images or labels.

  A person may be replaced by others without a change of any number, so that the
  pixels are compared.
  """
  others = {client.name: client for client in after}
  return tuple(
    one.name
    for one in before
    if one.name not in others or not _equal(one, others[one.name])
  )


def _equal(one: ClientData, other: ClientData) -> bool:
  columns = 'labels', 'cameras', 'modalities'
  return (
    one.num_identities == other.num_identities
    and all(
      np.array_equal(getattr(one, name), getattr(other, name))
      for name in columns
    )
    and np.array_equal(one.images(), other.images())
  )


def notices(left: Left) -> list[str]:
  """What a person who leaves somebody out of a run should read."""
  found = []
  if not left.touched and not _is_judged(left.config):
    found.append(
      'no client trains on them (held out or tested on), so that only '
      'evaluations and the choice of the best round may differ'
    )
  if left.config.start_from:
    found.append(
      f'the run started from {left.config.start_from}, whose models may have '
      'learnt from them, and so does the result: forget them there first, '
      'then give --set=start_from=DIR'
    )
  name = left.config.model.pretrained
  if name:
    found.append(f'the weights {name} are not changed')
  if validation.is_private(left.config):
    found.append(
      'noise and guarantee follow from the numbers of clients and images: the '
      'result has its own in results.json'
    )
  saved = load.load_saved(left.workdir)
  differ = _differ(saved, left.config)
  if differ:
    found.append(
      f'fields other than those of the run: {", ".join(differ)}; the result is '
      'that of a run with these values'
    )
  return found


def _differ(saved: Config, config: Config) -> list[str]:
  """Names of the fields that belong to a run and have other values."""
  before, now = (parsing.flatten(load.to_json(one)) for one in (saved, config))
  return sorted(
    name
    for name in before.keys() | now.keys()
    if before.get(name) != now.get(name)
  )


class Start(NamedTuple):
  """Where a replay starts.

  Attributes:
    step: the checkpoint, 0 for the start of the run.
    first: the first round in which they took part, counted from 1; None if
      rounds were not compared.
    before: the setup of the run, None unless there is such a checkpoint.
    after: the setup without them, likewise.
  """

  step: int
  first: int | None = None
  before: build.Setup | None = None
  after: build.Setup | None = None


def start(left: Left) -> Start:
  """Finds the last checkpoint on which the departed had no influence."""
  config = left.config
  saved = run_files.checkpoints_of(left.workdir)
  kept = [step for step in saved.steps() if 0 < step < config.rounds]
  depends = (
    config.availability.in_flight > 0
    # The first models, and constants of the network, are of another run.
    or bool(config.start_from)
    or not config.execution.deterministic
    or bool(_differ(load.load_saved(left.workdir), config))
    or validation.is_private(config)
    # They may have read the images of everybody, or their number.
    or any(one.bind for one in validation.load_components(config))
    # Held-out persons have been tested since the start of the run.
    or _is_judged(config)
  )
  if depends or not kept:
    return Start(0)
  before = build.assemble(config, left.federation)
  after = build.assemble(left.rest, left.others)
  first = _first_round(left, before, after)
  if not _begin_alike(before, after):
    return Start(0, first)
  fitting = [
    step
    for step in kept
    if step < first
    and saved.verify(step) is None
    and not (left.workdir / steps.FOLDER / str(step) / 'rows').is_dir()
  ]
  return Start(max(fitting, default=0), first, before, after)


def _is_judged(config: Config) -> bool:
  """Whether training depends on tests on held-out persons."""
  return any(map(judges, validation.load_components(config)))


def _first_round(left: Left, before: build.Setup, after: build.Setup) -> int:
  """The first round, from 1, in which the runs have other clients or images."""
  names = [[c.name for c in one.federation.clients] for one in (before, after)]
  # In deterministic mode nothing else depends on the order of a cohort.
  ordered = left.config.batch_stats_rule == 'first_client'
  for number in range(left.config.rounds):
    ours, theirs = (one.rounds.cohorts.draw(number) for one in (before, after))
    own = [names[0][k] for k in ours.clients]
    others = [names[1][k] for k in theirs.clients]
    late = ours.timed.late if ours.timed else []
    part = {*own, *(names[0][k] for k in late)}
    same = own == others if ordered else sorted(own) == sorted(others)
    if not same or part & {*left.touched}:
      return number + 1
  return left.config.rounds + 1


def _begin_alike(before: build.Setup, after: build.Setup) -> bool:
  """Whether nothing but the clients of a round tells the two runs apart."""
  ours, theirs = before.rounds, after.rounds
  # A data pass before round 0 is of all clients.
  if ours.algorithm.prepares or theirs.algorithm.prepares:
    return False
  variables = before.variables, after.variables
  # The padding of the classifier changes the random values of all columns.
  if not _same_bits(*variables):
    return False
  first, second = (one.start()[0] for one in (before, after))
  if len(first.groups) == len(second.groups):
    return _same_bits(first, second)
  # A state of the server may have counted the clients in every round.
  if jax.tree.leaves((first.states, second.states)):
    return False
  groups = np.asarray(first.groups), np.asarray(second.groups)
  return not any(each.any() for each in groups)


def _same_bits(one: Any, other: Any) -> bool:
  if jax.tree.structure(one) != jax.tree.structure(other):
    return False
  return all(
    np.array_equal(np.asarray(a), np.asarray(b))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  )


def replay(
  left: Left, into: Path, began: Start, verbose: int = False
) -> dict[str, Any]:
  """Trains, or resumes, the run without the departed in a new work directory.

  Returns:
    The contents of its `results.json`.

  Raises:
    FedReIDError: as `loop.train`.
  """
  check_into(left, into)
  if began.step and not (into / run_files.CONFIG).exists():
    _plant(left, into, began)
  return _trained(left.rest, into, verbose)


def _trained(config: Config, into: Path, verbose: int) -> dict[str, Any]:
  try:
    return loop.train(config, into, verbose=verbose)
  except errors.ConfigError as error:
    # Only a folder with a run of another configuration is named by such errors.
    if error.where != str(into.absolute()):
      raise
    fix = 'choose another --into, or delete this folder if nobody needs it'
    raise errors.ConfigError(error.what, error.where, fix) from error


def check_into(left: Left, into: Path) -> None:
  """Refuses the folder of the run itself, and folders in it."""
  if into.resolve().is_relative_to(left.workdir.resolve()):
    raise errors.ConfigError(
      'the run itself, or a folder in it',
      '--into',
      'give another folder: a run is never changed, and may be deleted later',
    )


def _plant(left: Left, into: Path, began: Start) -> None:
  """Writes a run that resumes after the rounds before the departed.

  It has no evaluations and no rows of these rounds: their tests may have shown
  the departed.
  """
  before, after = began.before, began.after
  assert before and after
  server, store = before.start()
  saved = run_files.checkpoints_of(left.workdir)
  server, found, host = saved.restore(began.step, server, store.like())
  assert isinstance(found, ClientState)
  names = [one.name for one in left.others.clients]
  rows = np.asarray([host['clients'].index(name) for name in names])
  groups = np.asarray(server.groups)[rows]
  kept = replace(server, groups=groups)
  clients = jax.tree.map(lambda leaf: leaf[rows], found)
  config = left.rest
  progress = monitor.Progress(began.step)
  own = {
    'source': versions.resolve(config.data.source),
    'sources': list(config.data.sources or left.others.sources),
    'world_seed': config.data.world_seed,
    'clients': names,
  }
  # The bytes and images of these rounds are those of the same clients.
  progress.bytes, progress.images = host['bytes'], host['images']
  seconds = dict.fromkeys(host['seconds'], 0.0)
  resolved = load.to_json(config)
  with run_files.Lock(into) as held:
    run_files.check(into, resolved)
    with (
      recorder.Recorder(into, config.rounds, False) as record,
      run_files.begun(into, False, held.check),
    ):
      report.describe(config, after, record, into, b'')
      atomic.write_text(into / recorder.METRICS, '')
      claim = after.guarantee.statement(began.step)
      record.results(report.results(config, progress, seconds, claim))
      own |= {sealed.FILES: record.files()} | progress.to_host(seconds)
      made = checkpoint.Checkpoints(into, run_files.digests(resolved))
      made.save(began.step, kept, clients, own, None)


def more_rounds(
  left: Left, into: Path, rounds: int, verbose: int = False
) -> dict[str, Any]:
  """Trains more rounds from the models of the run, without the departed.

  Returns:
    The contents of its `results.json`.

  Raises:
    FedReIDError: as `loop.train`.
  """
  check_into(left, into)
  if validation.is_private(left.config):
    raise errors.ConfigError(
      'a private run may not start from trained models',
      '--rounds',
      'leave it out, for an exact replay',
    )
  return _trained(continued(left, rounds), into, verbose)


def continued(left: Left, rounds: int) -> Config:
  """The configuration of some more rounds without the departed."""
  return validation.validate(
    replace(left.rest, rounds=rounds, start_from=str(left.workdir.absolute()))
  )
