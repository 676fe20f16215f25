"""Presets that several recipes share, and the configuration that they change.

A recipe consists of `base`, a preset, and then its own changes, in this order.
A preset is a function that changes a configuration. The presets of
visible-infrared recipes are in `config.infrared`.
"""

from typing import Any

from fedreid_jax.config import parsing, schema
from fedreid_jax.data.synthetic import versions


def base(name: str, components: tuple[str, ...]) -> Any:
  """Returns the defaults with the name and the components of a recipe."""
  c = schema.default()
  c.name, c.components = name, components
  return schema.complete(c)


def synthetic(c: Any) -> None:
  """Trains on three synthetic domains and holds out a fourth."""
  c.data.source = versions.UNVERSIONED
  c.data.sources = ('plaza', 'campus', 'station')
  c.data.targets = ('mall',)
  c.data.height, c.data.width = 64, 32
  c.model.name = 'convnet'
  c.augment.pad = 4
  _halve_rate(c)


def smoke(c: Any) -> None:
  """Reduces `synthetic` to two rounds of small images, which take seconds."""
  synthetic(c)
  _two_rounds(c)
  c.data.shots = 2


def photos(c: Any) -> None:
  """Reads a user's photographs and tests on the last domain."""
  c.data.source = 'folder'
  c.data.height, c.data.width = 128, 64
  c.data.camera_pattern, c.data.query = 'auto', 'random'
  # A single data set is tested on a quarter of its persons. A tenth of the
  # persons of every client choose the best round.
  c.data.held_out, c.evaluation.validation = 0.25, 0.1
  c.model.name, c.model.pretrained = 'mobilenet_v2', 'mobilenet_v2-synthetic'
  c.augment.pad = 8
  _halve_rate(c)
  c.optim.lr = 0.02  # that of the training of the weights


def omniglot(c: Any) -> None:
  """Reads alphabets/characters/drawings of Omniglot: grey and inverted."""
  c.data.source = 'folder'
  c.data.sources = ()
  c.data.targets = ('Greek',)
  c.data.query = 'camera=01'
  c.data.height = c.data.width = 32
  c.data.channels, c.data.invert = 'grey', True
  c.data.mean, c.data.std = (0.0,), (1.0,)
  c.model.name = 'convnet'
  c.augment.pad, c.augment.flip = 3, 0.0
  _halve_rate(c)


def nine(c: Any) -> None:
  """Trains nine synthetic clients with sizes like FedReIDBench's, 131 to 1.

  The targets are other persons of these domains, and the domain mall, of which
  no client has images.
  """
  synthetic(c)
  c.optim.lr, c.optim.schedule = 0.05, 'constant'  # as in the papers
  c.data.height, c.data.width = 48, 24
  c.data.sources = (
    'plaza:identities=82',
    'campus:identities=42',
    'station:identities=32',
    'park:identities=18',
    'market:identities=19,shots=2',
    'harbour:identities=10,shots=2',
    'alley:identities=13,cameras=2,shots=1',
    'arcade:identities=9,cameras=2,shots=1',
    'bridge:identities=5,cameras=2,shots=1',
  )
  names = tuple(spec.partition(':')[0] for spec in c.data.sources)
  c.data.targets = (*names, 'mall')
  c.data.target_identities = 30
  c.data.allow_overlap = True
  # The best round is selected from ten evaluations; an evaluation of these
  # targets costs half a round of training.
  c.evaluation.every = 2


def nine_with_local_models(c: Any) -> None:
  """Trains the nine synthetic clients and keeps their models, too."""
  nine(c)
  c.components = (*c.components, 'local_models')


def nine_data_sets(c: Any) -> None:
  """Sets FedReIDBench's published setting with nine data sets.

  All are clients and targets (journal version, section 3.5 and table 3).
  """
  c.data.source = 'datasets'
  c.data.sources = (
    *('msmt17', 'dukemtmc', 'market1501', 'cuhk03-np', 'prid2011:split=half'),
    *('cuhk01:split=half', 'viper:split=half', '3dpes:split=half'),
    'qmul-ilids:split=half',
  )
  c.data.targets = c.data.sources
  c.data.allow_overlap = True  # other persons of the same data sets
  c.data.height, c.data.width = 256, 128
  c.model.name, c.model.last_stride = 'resnet50', 2
  c.model.neck, c.model.classifier_bias = 'bottleneck', True
  c.rounds, c.evaluation.every = 300, 10
  c.optim.lr_multipliers = (('params/backbone/', 0.1),)
  c.augment.pad = 10
  c.evaluation.protocol = 'fedreid_legacy'
  c.evaluation.metric, c.evaluation.flip = 'cosine', True
  c.execution.stack_budget_mb = 1024.0  # nine models of ResNet-50


def nine_data_sets_with_local_models(c: Any) -> None:
  """Sets `nine_data_sets` and keeps the clients' models, too."""
  nine_data_sets(c)
  c.components = (*c.components, 'local_models')


def nine_data_sets_alone(c: Any) -> None:
  """Changes `nine_data_sets` to training without a federation.

  It has 100 epochs, and the rate decreases every 40 epochs.
  """
  nine_data_sets(c)
  c.rounds = 100
  c.optim.schedule, c.optim.milestones = 'step', (40, 80)


def three_data_sets(c: Any) -> None:
  """Sets DFH's published setting: three sources, target Market-1501 (table 1).

  The other rows have the targets 'cuhk02' and 'cuhk03' with the other data sets
  as sources.
  """
  c.data.source = 'datasets'
  c.data.sources = ('msmt17', 'cuhk02', 'cuhk03')
  c.data.targets = ('market1501',)
  c.data.height, c.data.width = 256, 128
  c.model.name = 'resnet50'
  c.rounds = 40
  c.local.batch, c.local.identities, c.local.steps = 64, 16, 200
  c.optim.lr = 1e-3
  c.optim.schedule, c.optim.milestones, c.optim.gamma = 'step', (20, 30), 0.5
  c.augment.pad, c.augment.erase = 10, 0.5
  c.augment.erase_fill = (0.485, 0.456, 0.406)
  c.augment.erase_tries = 100


def another_world(c: Any) -> None:
  """Trains on eleven domains of a separate world, with 110 persons each.

  A client has images of both modalities. The test is on persons of the twelfth
  domain, whose images are all visible.
  """
  synthetic(c)
  c.data.source = versions.FIRST
  c.data.world_seed = 1000
  c.data.sources = ()  # all that are no target
  c.data.targets = ('garden:infrared=0',)
  c.data.identities = 110
  c.data.infrared, c.data.shots = 1, 2
  c.data.brightness_correlation = 0.5
  c.local.batch = 64


def few_of_another_world(c: Any) -> None:
  """Reduces `another_world` to two rounds of small images."""
  another_world(c)
  _two_rounds(c)


def many_persons(c: Any) -> None:
  """Trains on 2,200 rendered persons of eleven domains, each a client.

  The images are as large as those of `photos`. Cameras differ twice as much as
  usual, and images are enlarged, erased and made grey. The test is on other
  persons, of the twelfth domain.
  """
  c.data.source, c.data.world_seed = versions.NEWEST, 2000
  c.data.client_split = 'by_dataset'
  c.data.sources, c.data.targets = (), ('garden',)
  c.data.identities, c.data.shots = 200, 2
  c.data.height, c.data.width = 128, 64
  c.data.camera_spread = 2.0
  c.augment.pad, c.augment.enlarge = 8, 0.5
  c.augment.erase, c.augment.grey = 0.5, 0.05
  # A triplet loss on the pooled feature, which ReLU6 limits, collapses it.
  c.model.neck, c.loss.label_smoothing = 'bnneck', 0.1
  c.optim.lr, c.optim.schedule = 0.02, 'cosine'
  c.rounds, c.evaluation.every = 7, 1
  c.evaluation.metric = 'cosine'
  c.evaluation.report_both_neck_features = True


def _two_rounds(c: Any) -> None:
  c.rounds = c.evaluation.every = 2
  c.data.height, c.data.width = 32, 16
  c.data.identities = c.data.target_identities = 12
  c.model.features = (16, 32)


def _halve_rate(c: Any) -> None:
  """Halves the rate after half and three quarters of the run, as in DFH."""
  c.optim.lr, c.optim.schedule = 0.05, 'step'
  c.optim.milestones, c.optim.gamma = (0.5, 0.75), 0.5


# Share of the persons of a client by which a rate is chosen.
HELD_OUT = 0.25


def from_random(c: Any) -> None:
  """Sets the trials of docs/protocol.md from random weights."""
  synthetic(c)
  c.evaluation.validation, c.evaluation.every = HELD_OUT, c.rounds


def from_rendered(c: Any) -> None:
  """Sets the trials of docs/protocol.md from weights of rendered persons."""
  synthetic(c)
  c.model.pretrained = 'convnet-synthetic'
  # Cameras of the default spread differ too little for these weights.
  c.data.camera_spread = 3.0
  c.evaluation.validation = HELD_OUT
  c.optim.lr = 0.02
  c.rounds = c.evaluation.every = 10


def from_imagenet(c: Any) -> None:
  """Sets the trials of docs/protocol.md from weights of ImageNet.

  docs/export.md has the command that imports the file.
  """
  synthetic(c)
  _of_imagenet(c)


def nine_from_imagenet(c: Any) -> None:
  """Sets the trials of nine clients of very different sizes, from ImageNet."""
  nine_with_local_models(c)
  _halve_rate(c)
  _of_imagenet(c)


def _of_imagenet(c: Any) -> None:
  c.model.name, c.model.last_stride = 'mobilenet_v2', 1
  c.model.pretrained = 'mobilenet_v2.safetensors'
  c.evaluation.validation = HELD_OUT
  c.optim.lr = 0.02
  c.rounds = c.evaluation.every = 6


def many_clients(c: Any) -> None:
  """Divides one synthetic domain over 40 clients."""
  c.data.sources, c.data.client_split = ('plaza',), 'iid'
  c.data.num_clients, c.data.identities = 40, 40


def from_public_weights(c: Any) -> None:
  """Starts a convnet from published weights and keeps their statistics."""
  c.model.pretrained, c.model.norm = 'convnet-synthetic', 'frozen'
  c.model.features = schema.default().model.features
  if c.data.source == versions.UNVERSIONED:
    c.data.source = versions.FIRST  # as the images of the weights


def identities_private(c: Any) -> None:
  """Trains with DP-SGD: few parameters of public weights, if there are any."""
  c.local.sampler, c.local.steps = 'poisson_pk', 20
  c.local.batch, c.local.identities = 32, 8
  c.dpsgd.epsilon = 8.0
  c.model.neck = 'bnneck'
  if c.model.name == 'convnet' and c.data.channels == 'rgb':
    from_public_weights(c)
  if c.model.pretrained:
    c.model.norm = 'frozen'
    c.dpsgd.trainable = 'params/(neck|classifier)/'
  else:
    c.model.norm = 'group'


def with_triplet(
  name: str, components: tuple[str, ...], given: parsing.Argument
) -> Any:
  """Returns a recipe with DFH's base loss, after the preset of its argument.

  The loss is cross-entropy and a triplet loss on the pooled feature of PK
  batches. In space 'b' both are on the normalisation of this feature, which is
  then also ranked.
  """
  c = base(name, components)
  c.local.sampler, c.local.batch, c.local.identities = 'pk', 32, 8
  given.apply_preset(c)
  c.dfh.space = space = given.options['space']
  c.model.neck = 'bn' if space == 'b' else 'none'
  c.loss.triplet = 1.0
  c.optim.nesterov = False
  return c


def without_labels(
  name: str, components: tuple[str, ...], given: parsing.Argument
) -> Any:
  """Returns a recipe of clients without labels, after the preset."""
  c = base(name, components)
  c.model.neck = 'bnneck'
  given.apply_preset(c)
  # Persons of these clients cannot be held out.
  c.data.unlabelled, c.evaluation.validation = ('all',), 0.0
  return c


def cameras(c: Any) -> None:
  """Adapts a model of one synthetic domain to the cameras of another one.

  The source is one client with labels, and each camera of the target a client
  without. The test is on other persons of the target.
  """
  synthetic(c)
  _adapt(c, 'plaza', 'mall')


def few_cameras(c: Any) -> None:
  """Reduces `cameras` to two rounds of small images, which take seconds."""
  smoke(c)
  _adapt(c, 'plaza', 'mall')


def cameras_from_rendered(c: Any) -> None:
  """Sets `cameras` from weights of rendered persons."""
  from_rendered(c)
  _adapt(c, 'plaza', 'mall')


def cameras_of_market(c: Any) -> None:
  """Sets the published setting of Fed-Protoid, MSMT17 to Market-1501.

  The number of rounds is not published.
  """
  three_data_sets(c)
  _adapt(c, 'msmt17', 'market1501')
  c.model.pool = 'gem'
  c.rounds, c.evaluation.every = 100, 10
  c.local.batch, c.local.steps = 16, 0
  c.optim.schedule, c.optim.milestones = 'constant', ()
  c.execution.stack_budget_mb = 1024.0  # seven models of ResNet-50


def _adapt(c: Any, source: str, target: str) -> None:
  c.data.sources, c.data.targets = (source, target), (target,)
  c.data.client_split, c.data.undivided = 'by_camera', (source,)
  c.data.unlabelled = (target,)
  c.data.allow_overlap = True  # other persons of the target
  c.evaluation.validation = 0.0


ADAPTED = {
  'synthetic': cameras,
  'smoke': few_cameras,
  'rendered': cameras_from_rendered,
  'paper': cameras_of_market,
}
FEDERATED = {
  'synthetic': synthetic,
  'smoke': smoke,
  'photos': photos,
  'omniglot': omniglot,
  'nine': nine_with_local_models,
  'paper': nine_data_sets_with_local_models,
  'rendered': from_rendered,
  'imagenet': from_imagenet,
  'nine_imagenet': nine_from_imagenet,
}
ALONE = FEDERATED | {'nine': nine, 'paper': nine_data_sets_alone}
GENERALISED = FEDERATED | {
  'nine': nine,
  'paper': three_data_sets,
  'random': from_random,
}
PRETRAINING = {
  'synthetic': another_world,
  'smoke': few_of_another_world,
  'persons': many_persons,
}
# Public domain by preset, for methods that need one.
PUBLIC = {
  'synthetic': 'park',
  'smoke': 'park',
  'photos': '',
  'omniglot': '',
  'nine': 'depot:identities=24,shots=2',
  'paper': 'cuhk02:split=public',
  'rendered': 'depot',
  'imagenet': 'depot',
  'nine_imagenet': 'depot:identities=24,shots=2',
}
