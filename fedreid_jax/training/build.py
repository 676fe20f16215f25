"""Builds the data, model, method, rounds and evaluators of a run."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from fedreid_jax import errors
from fedreid_jax.config.configuration import Config
from fedreid_jax.config.validation import arguments, load_components
from fedreid_jax.core import trees, types
from fedreid_jax.core.secret import Secret
from fedreid_jax.data import augment, load, validation
from fedreid_jax.data.federation import Federation
from fedreid_jax.data.synthetic import versions
from fedreid_jax.evaluation import evaluator
from fedreid_jax.method import guarantee, optimizers
from fedreid_jax.method.component import Component, Participants, judges
from fedreid_jax.models import networks, tuning
from fedreid_jax.round import compose, placement
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.rounds import Rounds
from fedreid_jax.training import (
  earlier_data,
  engine,
  source_stats,
  whole_network,
)
from fedreid_jax.training.files import run_secret
from fedreid_jax.training.processes import peers

# Names of variables. A neck has parameters and statistics, which are in
# different collections.
CLASSIFIER = r'params/(.+/)?classifier/'
CAMERAS = r'params/(.+/)?camera_embed'  # used in training only
NECK = r'\w+/(.+/)?neck'


class Setup(NamedTuple):
  """The parts of a run.

  `evaluate` is `({name: variables}, source) -> entries`, see `evaluator.make`.
  """

  federation: Federation
  participants: Participants
  variables: types.Flat  # of the model before round 0
  pretrained: tuple[str, ...]  # variables from a weight file
  rounds: Rounds
  schedule: Callable[..., types.Array]  # learning rate of a round
  evaluate: Callable[..., list[dict[str, Any]]]
  guarantee: guarantee.Guarantee
  secret: Secret | None  # None: no private draws
  frozen: types.Flat  # parameters that are constants of the model

  def start(self) -> tuple[types.ServerState, ClientStore]:
    """Returns the state of the server, and those of clients, before round 0.

    Raises:
      ConfigError: for a guarantee of privacy that a message does not keep.
    """
    server, store = self.rounds.init(self.variables, self.pretrained)
    if self.guarantee.claim:
      self.guarantee.check(self.rounds.senders(server))
    return server, store


Maker = Callable[[Config, bytes | None], Setup]


def build(config: Config, root: bytes | None = None) -> Setup:
  """Builds all parts of a run, as `assemble`, with the images of `config`."""
  federation = load.load(
    config.data,
    options=arguments(config, config.data.source),
    held_out=config.evaluation.validation,
  )
  source_stats.check(config.evaluation.batch_stats, federation.clients)
  # Before anything is compiled: processes with different images would train
  # different models.
  peers.require('data', lambda: _inputs(config, federation))
  return assemble(config, federation, root=root)


def assemble(
  config: Config, federation: Federation, root: bytes | None = None
) -> Setup:
  """Builds all parts of a run on images that are loaded.

  A new root is drawn if it is needed and None is given.
  """
  made = parts(config, federation, root=root)
  rounds = engine.make_rounds(
    config,
    federation,
    made.model,
    made.components,
    made.transforms,
    made.mesh,
    secret=made.secret,
    participants=made.participants,
  )
  return complete(config, made, rounds)


class Parts(NamedTuple):
  """The parts of a run before its rounds."""

  federation: Federation
  participants: Participants
  components: tuple[Component, ...]  # bound to the participants
  model: types.Model
  variables: types.Flat  # of the model before round 0
  pretrained: tuple[str, ...]  # variables from a weight file
  transforms: augment.Transforms
  mesh: Mesh
  extra: tuple[evaluator.Evaluator, ...]  # of `evaluation.extra`
  condition: str  # of a guarantee, '' without one
  secret: Secret | None  # None: no private draws
  frozen: types.Flat  # parameters that are constants of the model

  def method(
    self, config: Config, plans: engine.Plans, here: int
  ) -> engine.Method:
    """Composes the method, see `engine.make_method`."""
    return engine.make_method(
      config,
      self.federation,
      self.model,
      self.components,
      self.transforms,
      self.mesh,
      self.participants,
      plans,
      here,
      secret=self.secret,
    )


def parts(
  config: Config,
  federation: Federation,
  *,
  columns: int | None = None,
  cohort: int | None = None,
  root: bytes | None = None,
) -> Parts:
  """Builds the parts of a run before its rounds.

  Args:
    columns: columns of the classifier, `C`; None: those of the clients.
    cohort: largest number of clients of a round, `K`; None: by the clients.
    root: from which secrets follow; None draws a new one if it is needed.
  """
  extra = load_evaluators(config)
  # The classifier of every client is padded to the client with the most
  # identities, so that all clients have one structure.
  columns = columns or max(c.num_identities for c in federation.clients)
  model, frozen = with_constants(config, columns, federation.image_shape)
  loaded = load_components(config)
  people = engine.participants_of(config, federation, cohort)
  participants = engine.completed(loaded, people, model)
  components = engine.bound(loaded, participants)
  secret = run_secret.make(config, federation, components, root)
  transforms = augment.make(config.augment, federation.mean, federation.std)
  condition = ''
  if any(component.claim for component in components):
    condition = earlier_data.condition(config, federation.digest)
  mesh = placement.make_mesh(_num_devices(config, len(federation.clients)))
  # While no process compiles: the first collective has a short time limit.
  peers.connect(mesh)
  variables = jax.jit(model.init)(jax.random.key(config.seed))
  variables, of_file = pretrained(config, variables)
  pattern = compose.shared_leaves(components)
  shared, _ = trees.split(variables, pattern)
  check_classifier(federation, shared or variables)
  check_flip(config.data.poison, shared)
  check_ranked(config, variables, pattern)
  check_judged(components, federation)
  return Parts(
    federation,
    participants,
    components,
    model,
    variables,
    of_file,
    transforms,
    mesh,
    extra,
    condition,
    secret,
    frozen,
  )


def complete(config: Config, made: Parts, rounds: Rounds) -> Setup:
  """Builds the setup of a run from its rounds and its other parts."""
  federation, participants = made.federation, made.participants
  return Setup(
    federation,
    participants,
    made.variables,
    made.pretrained,
    rounds,
    optimizers.schedule(config.optim, config.rounds),
    evaluator.make(
      config.evaluation,
      federation.targets,
      made.model,
      made.transforms,
      made.mesh,
      made.extra,
    ),
    guarantee.Guarantee(
      made.components,
      participants,
      config.privacy.secret == 'seed',
      made.condition,
    ),
    made.secret,
    made.frozen,
  )


def network(
  config: Config,
  num_classes: int,
  image_shape: tuple[int, int, int],
) -> types.Model:
  """Returns the network for images `(H, W, ch)` with `C` identities.

  With `model.tune` or `model.trained` its variables are those that are trained.
  """
  return with_constants(config, num_classes, image_shape)[0]


def with_constants(
  config: Config,
  num_classes: int,
  image_shape: tuple[int, int, int],
) -> tuple[types.Model, types.Flat]:
  """Returns `network`, and the parameters that are constants of it."""
  model = _whole(config, num_classes, image_shape)
  if not (chosen := tuning.plan(config.model)):
    return model, {}
  base = _base(config, model)
  return tuning.wrap(model, base, chosen), tuning.frozen(base, chosen)


def _whole(config: Config, num_classes: int, image_shape) -> types.Model:
  options = arguments(config, config.model.name)
  changes = [c.network for c in load_components(config) if c.network]
  made = networks.build(config.model, num_classes, options, changes)
  return networks.wrap(made, image_shape)


def _base(config: Config, model: types.Model) -> types.Flat:
  first = jax.jit(model.init)(jax.random.key(config.seed))
  chosen = tuning.plan(config.model)
  if config.start_from and chosen:
    return whole_network.started(config.start_from, first, chosen, _of_config)
  return _from_file(config, first)[0]


def _of_config(config: Config) -> types.Flat:
  """The variables of the network of another run, before its training."""
  shape = load.without_images(config.data).image_shape
  return _base(config, _whole(config, 1, shape))


def tuned(config: Config, setup: Setup) -> str:
  """Compares the parameters that are trained with the whole network's.

  Returns '' if all are trained.
  """
  if not tuning.plan(config.model):
    return ''
  shape = setup.federation.image_shape
  model = _whole(config, 1, shape)
  whole = jax.eval_shape(model.init, jax.random.key(0))
  counts = []
  for leaves in (setup.variables, whole):
    _, known = trees.split(leaves, CLASSIFIER)
    params, _ = trees.trainable(known)
    counts.append(sum(x.size for x in params.values()))
  share, size = 100 * counts[0] / counts[1], trees.num_bytes(whole) / 1e6
  return (
    f'trains {counts[0]:,} of {counts[1]:,} parameters without the classifier '
    f'({share:.1f} %); the whole network has {size:.1f} MB'
  )


def merged(
  config: Config, leaves: types.Flat, image_shape: tuple[int, int, int]
) -> types.Flat:
  """Returns the variables of the whole network, of a model of `network`."""
  if not (chosen := tuning.plan(config.model)):
    return leaves
  model = _whole(config, 1, image_shape)
  backbone, _ = trees.split(_base(config, model), tuning.BACKBONE)
  return tuning.merged(leaves, backbone, chosen)


def pretrained(
  config: Config, variables: types.Flat
) -> tuple[types.Flat, tuple[str, ...]]:
  """Replaces variables by the weights of the file `config.model.pretrained`.

  Returns (variables, names of those from the file); none without a file, or
  if the network already has them, see `network`.
  """
  if tuning.plan(config.model):
    return variables, ()
  return _from_file(config, variables)


def _from_file(
  config: Config, variables: types.Flat
) -> tuple[types.Flat, tuple[str, ...]]:
  name = config.model.pretrained
  if not name:
    return variables, ()
  from fedreid_jax.models import weights

  data = config.data
  weights.check_unseen(name, versions.resolve(data.source), data.world_seed)
  image = data.height, data.width
  return weights.load(name, jax.device_get(variables), image)


def load_evaluators(config: Config) -> tuple[evaluator.Evaluator, ...]:
  """Returns the evaluators of `evaluation.extra` except the one of the task."""
  task = config.data.task
  return tuple(
    evaluator.load(name, task, arguments(config, name))
    for name in dict.fromkeys(config.evaluation.extra)
    if name != task
  )


def _inputs(config: Config, federation: Federation) -> dict[str, str]:
  """Digests of images, labels and weights."""
  inputs = {'digest of the images': federation.digest}
  for one in federation.clients:
    labels = hashlib.sha256(one.labels.tobytes() + one.cameras.tobytes())
    inputs[f'labels of {one.name}'] = labels.hexdigest()
  if name := config.model.pretrained:
    from fedreid_jax.models import weights

    if (path := weights.find(name)).is_file():
      read = hashlib.sha256(path.read_bytes())
      inputs['model.pretrained'] = read.hexdigest()
  return inputs


def check_classifier(federation: Federation, leaves: types.Flat) -> None:
  """Refuses a classification target if the tested model has no classifier."""
  classifies = 'classification' in [t.task for t in federation.targets]
  if classifies and not trees.split(leaves, CLASSIFIER)[0]:
    raise errors.ConfigError(
      'the tested model has no classifier, since it is a personal parameter',
      'components',
      'use a method that shares it, or that shares nothing',
    )


def check_judged(
  components: Sequence[Component], federation: Federation
) -> None:
  """Refuses a component that judges models if no persons are held out."""
  judging = [c.name for c in components if judges(c)]
  tested = any(validation.is_validation(t.name) for t in federation.targets)
  if judging and not tested:
    raise errors.DataError(
      f'no domain has enough identities to hold out any, by which '
      f'{", ".join(judging)} judges models',
      'evaluation.validation',
      'raise it, or train on domains with more identities',
    )


def check_flip(poison: str, shared: types.Flat) -> None:
  """Refuses flipped labels if the classifier is not shared."""
  if poison == 'flip' and not trees.split(shared, CLASSIFIER)[0]:
    raise errors.ConfigError(
      'the classifier is personal, so that flipped labels only rename persons',
      'data.poison',
      "use a method that shares it, such as FedAvg, or 'shuffle'",
    )


def check_ranked(config: Config, leaves: types.Flat, shared: str) -> None:
  """Refuses to rank by features of layers that stay at the clients.

  `shared` is the pattern of the names of the shared leaves.
  """
  known, own = trees.split(leaves, shared)
  if not known:
    return
  given = config.evaluation
  # Ranking uses no classifier and no cameras, the feature before the neck needs
  # no neck, and moments that are measured on the clients or on the gallery
  # replace those of the model. Those of a stream begin with the model's own.
  without = [CLASSIFIER, CAMERAS]
  if given.feature == 'feature' and not given.report_both_neck_features:
    without.append(NECK)
  # A layer of infrared images may see no image of the gallery.
  on_gallery = given.batch_stats == 'target'
  every_layer = not config.model.modality_specific_stages
  if given.batch_stats in source_stats.MEASURED or on_gallery and every_layer:
    without.append('batch_stats/')
  _, lacking = trees.split(own, '|'.join(without))
  if not lacking:
    return
  field, fix = 'components', 'share it'
  if not trees.split(lacking, NECK)[1]:
    field = 'evaluation.feature'
    fix += ", or set it to 'feature', without report_both_neck_features"
  raise errors.ConfigError(
    f'{next(iter(lacking))} is personal, so that the global model cannot be '
    'tested',
    field,
    fix,
  )


def _num_devices(config: Config, num_clients: int) -> int:
  """One process uses at most one device per client."""
  wanted, present = config.execution.devices, jax.device_count()
  if config.execution.debug and jax.process_count() == 1:
    wanted = wanted or 1
  if wanted > present:
    raise errors.ConfigError(
      f'{errors.counted(wanted, "device")} of {present}',
      'execution.devices',
      'ask for fewer',
    )
  if wanted or jax.process_count() > 1:
    return wanted or present
  return min(present, num_clients)
