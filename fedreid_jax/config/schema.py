"""Every field of a configuration with its default, and the shared presets.

A recipe starts from `default()`, changes what its paper says, and names its
presets. `--config=FILE:PRESET,key=value,...` picks one and changes fields.
"""

from typing import Any

import ml_collections

ConfigDict = ml_collections.ConfigDict


def default() -> Any:
  """Returns all fields with their defaults."""
  c: Any = ConfigDict()
  c.name = 'run'  # name of the recipe, part of the default work directory
  c.components = ('fedpav',)  # the ideas of the method, in order
  c.seed = 0  # of the run: models, batches, augmentation, cohorts
  c.rounds = 20  # communication rounds
  c.fraction = 1.0  # of clients that take part in a round, rounded up
  c.batch_stats_rule = 'average'  # running statistics; first_client|keep_server
  c.checkpoint_every = 5  # rounds; the last round and signals save too
  c.start_from = ''  # work directory of a run whose last models are the first

  c.data = ConfigDict()
  c.data.source = 'synthetic'  # 'synthetic', 'folder' or 'datasets'
  c.data.root = ''  # folder of domains; datasets: of one data set or of all
  c.data.task = 'retrieval'  # or 'classification', of classes clients share
  c.data.client_split = 'by_dataset'  # or by_camera|by_identity|centralised|
  # standalone; visible-infrared: camera_independent|entity_independent|
  # entity_shared; iid|dirichlet: one domain split over num_clients
  c.data.num_clients = 4  # iid, dirichlet
  c.data.concentration = 0.5  # dirichlet: of each class over the clients
  c.data.labels = ''  # of a classifier that travels: concat|max|global
  c.data.sources = ()  # domains to train on, a client each; () all others
  c.data.targets = ()  # domains nobody trains on, ranked at evaluation
  c.data.public = ''  # unlabelled images everybody may see: neither of those
  c.data.query = 'first_per_camera'  # folder: queries of a target; also
  # 'first' (of each identity) or 'camera=NAME+NAME'
  c.data.identity_pattern = r'^([^/]+)/'  # in the path below the domain
  c.data.camera_pattern = r'_(\d+)\.[^.]+$'  # likewise, one group
  c.data.height = 64  # pixels, images are resized once when they are read
  c.data.width = 32  # pixels
  c.data.channels = 'rgb'  # 'rgb' or 'grey'
  c.data.invert = False  # folder: dark strokes on white become light on black
  c.data.mean = (0.485, 0.456, 0.406)  # of normalised images, a channel each
  c.data.std = (0.229, 0.224, 0.225)  # likewise
  c.data.on_bad_image = 'error'  # 'error' or 'skip' unreadable files
  c.data.resample = 'bicubic'  # bicubic|bilinear|lanczos, of the resizing
  c.data.max_pixels = 40_000_000  # of a file; a larger one is not decoded
  c.data.fast_decode = False  # JPEG at a fraction of its size; other pixels
  c.data.allow_overlap = False  # let a domain, or equal files, be both source
  # and target
  c.data.world_seed = 0  # which synthetic world, which random splits
  c.data.identities = 48  # synthetic: identities of a source domain
  c.data.cameras = 4  # synthetic: visible cameras of every domain
  c.data.infrared = 0  # synthetic: infrared cameras of every domain
  c.data.brightness_correlation = 0.0  # of 0 to 1: share of what garments
  # reflect of the infrared is their brightness; the rest is drawn apart
  c.data.shots = 4  # synthetic: images of an identity from a camera
  c.data.target_identities = 60  # synthetic: identities of a target domain
  c.data.direction = 'infrared-visible'  # query, then gallery
  c.data.search = 'all'  # SYSU-MM01: 'all' or 'indoor' cameras
  c.data.shots_per_camera = 1  # SYSU-MM01: 1 (single-shot) or 10 (multi-shot)
  c.data.gallery_sampling = 'agw'  # SYSU-MM01: 'agw' or 'official'
  c.data.trials = 10  # SYSU-MM01, LLCM: random galleries
  c.data.target_shots = 2  # synthetic: the first is a query, the rest gallery

  c.model = ConfigDict()
  c.model.name = 'resnet50'  # resnet18|34|50|101, resnet32 (CIFAR), convnet
  c.model.variant = 'plain'  # snr|snr_entropy|agw|dns|deen|lba
  c.model.modality_specific_stages = 0  # of a backbone: stem, then stages
  c.model.width = 1.0  # multiplies the channels of a ResNet
  c.model.small_stem = False  # 3x3 stem without pooling, for small images
  c.model.last_stride = 1  # of the last ResNet stage, 1 or 2
  c.model.features = (32, 64, 128, 128)  # channels of the convnet's blocks
  c.model.pool = 'gap'  # gap|gem|flatten
  c.model.neck = 'bn'  # none|bn (no affine)|bnneck|bottleneck|mapping
  c.model.bottleneck = 512  # features of the bottleneck and mapping necks
  c.model.dropout = 0.5  # of both
  c.model.classifier_bias = False  # whether the identity classifier has one
  c.model.dtype = 'float32'  # of computation; 'bfloat16' keeps float32
  # parameters, statistics and losses
  c.model.pretrained = ''  # torchvision weights as .safetensors

  c.local = ConfigDict()
  c.local.sampler = 'uniform'  # shuffle; pk, pk_replace|pk_torchreid, with
  # infrared images pk_modality|pk_caj
  c.local.batch = 32  # images of a step
  c.local.epochs = 1  # passes over a client's images a round
  c.local.steps = 0  # above 0: steps a round, whatever the client's size
  c.local.identities = 16  # pk: identities of a batch, batch / this images each
  c.local.cross_camera = True  # pk: prefer images of other cameras
  c.local.drop_last = True  # leave out a batch that is not full, unless alone
  c.local.accumulate = False  # one step a round with the gradient of all images
  c.local.data_pass_batch = 64  # images of a step of a data pass

  c.optim = ConfigDict()
  c.optim.name = 'sgd'  # sgd|adam
  c.optim.lr = 0.05  # before schedule and multipliers
  c.optim.momentum = 0.9  # sgd
  c.optim.nesterov = True  # sgd
  c.optim.weight_decay = 5e-4  # added to the gradient of leaves that have one
  c.optim.lr_multipliers = ()  # ((regular expression of leaves, factor), ...)
  c.optim.schedule = 'constant'  # by global round: constant|step|linear|cosine
  c.optim.milestones = ()  # step: rounds at which the rate falls; below 1, the
  # share of the rounds after which it does
  c.optim.gamma = 0.1  # step: factor
  c.optim.points = ()  # linear: ((round, factor), ...)
  c.optim.warmup = 0  # rounds of linear rise
  c.optim.schedule_per_step = False  # let the schedule move within a round
  c.optim.reset_each_round = True  # forget momentum when a round begins

  c.loss = ConfigDict()
  c.loss.identity = 1.0  # weight of cross-entropy
  c.loss.label_smoothing = 0.0  # over a client's own identities
  c.loss.triplet = 0.0  # weight of the hard triplet loss
  c.loss.margin = 0.5  # of the triplet loss
  c.loss.triplet_on = 'embedding'  # or 'feature', before the neck
  c.loss.circle = 0.0  # weight of the circle loss on embeddings
  c.loss.circle_margin = 0.45  # of the circle loss
  c.loss.circle_gamma = 64.0  # scale of the circle loss
  c.loss.weighted_triplet = 0.0  # weight of AGW's triplet loss on features
  c.loss.weighted_squared = False  # CAJ's form of it

  c.augment = ConfigDict()
  c.augment.pad = 4  # pixels of zeros on every side before a random crop
  c.augment.flip = 0.5  # probability of mirroring
  c.augment.erase = 0.0  # probability of erasing a rectangle
  c.augment.erase_fill = ()  # after normalisation, one a channel; () zeros
  c.augment.erase_area = (0.02, 0.4)  # share of the image, smallest and largest
  c.augment.erase_tries = 1  # rectangles drawn until one fits
  c.augment.grey = 0.0  # probability of no colour, before normalisation
  c.augment.channel = 0.0  # probability that one channel replaces all
  c.augment.channel_kinds = 'exchange'  # or luminance; copy (none)|grey|adapt
  c.augment.infrared = 'same'  # infrared images instead: adapt|hue
  c.augment.copies = ''  # pk_caj: what the second third of a batch gets

  c.evaluation = ConfigDict()
  c.evaluation.every = 5  # rounds; the first and last are always evaluated
  c.evaluation.protocol = ''  # '' the target's own, else market|sysu|...
  c.evaluation.rerank = False  # k-reciprocal re-ranking
  c.evaluation.metric = 'euclidean'  # euclidean|cosine
  c.evaluation.feature = 'embedding'  # or 'feature', before the neck
  c.evaluation.report_both_neck_features = False  # rank the other one, too
  c.evaluation.batch_stats = 'running'  # or 'source': re-estimated at the
  # tested weights on the clients' own images
  c.evaluation.flip = False  # average with the mirror image's feature
  c.evaluation.ranks = (1, 5, 10)  # of the match curve
  c.evaluation.batch = 128  # images of a device at a time
  c.evaluation.ensemble = ()  # of the clients' models, too: 'concat', 'average'
  c.evaluation.ensemble_norm = True  # concat: parts of unit length

  c.execution = ConfigDict()
  c.execution.deterministic = True  # same bits on 1, 2, 4, 8 devices
  c.execution.width = 1  # clients vmapped at a time, 0 all; not deterministic
  c.execution.devices = 0  # use the first so many, 0 for one a client at most
  c.execution.image_budget_mb = 0.0  # images kept on a device, 0 for no limit

  c.fedprox = ConfigDict()
  c.fedprox.mu = 0.01  # weight of the distance to the server's model

  c.fednova = ConfigDict()
  c.fednova.mu = 0.0  # of a proximal term; that of fedprox beside it

  c.moon = ConfigDict()
  c.moon.mu = 1.0  # weight of the contrastive loss
  c.moon.temperature = 0.5  # of its softmax

  c.fedatt = ConfigDict()
  c.fedatt.epsilon = 1.2  # step towards the attended clients
  c.fedatt.noise_scale = 0.0  # standard deviation added to every parameter

  c.scaffold = ConfigDict()
  c.scaffold.weights = 'size'  # of clients, control and model; 'uniform'

  c.fedopt = ConfigDict()
  c.fedopt.name = 'adam'  # server optimiser: sgd|adam|yogi|adagrad
  c.fedopt.lr = 0.01  # of the server
  c.fedopt.momentum = 0.9  # sgd: 0.9 is FedAvgM; adam, yogi: first moment
  c.fedopt.beta2 = 0.99  # adam, yogi: second moment
  c.fedopt.tau = 1e-3  # adaptivity, added to the root of the second moment

  c.cdw = ConfigDict()
  c.cdw.batch = 'local'  # images the distance is measured on; 'public'
  c.cdw.images = 32  # public: how many public images

  c.kd = ConfigDict()
  c.kd.every = 1  # rounds between distillations
  c.kd.normalise = 'teacher_only'  # features: teacher_only|both|none
  c.kd.lr = 5e-4  # of the server
  c.kd.batch = 32  # public images of a step
  c.kd.momentum = 0.9  # Nesterov
  c.kd.weight_decay = 5e-4  # of leaves that get a gradient

  c.client_clustering = ConfigDict()
  c.client_clustering.images = 32  # public images clients are compared on
  c.client_clustering.represent = 'flatten'  # or 'mean', a client as one vector

  c.fedpav = ConfigDict()
  c.fedpav.shared = r'(?!params/(.+/)?classifier/)'  # leaves that travel

  c.local_expert = ConfigDict()
  c.local_expert.temperature = 3.0  # of the softmax of both
  c.local_expert.frozen = False  # the model it starts from, never trained

  c.noise = ConfigDict()
  c.noise.beta = 5e-4  # standard deviation; no guarantee of privacy
  c.noise.double = False  # on every download too
  c.noise.batch_stats = False  # on running statistics too

  c.snr = ConfigDict()
  c.snr.loss = 'distance'  # or 'entropy', with model.variant=snr_entropy
  c.snr.dist_scale = 0.5  # distance is 0.5 minus this times the cosine
  c.snr.weights = ()  # of each stage; () those of algorithms/snr.py
  c.snr.identity_weights = (0.0, 0.0, 0.01, 0.0)  # entropy: cross-entropy

  c.dppt = ConfigDict()
  c.dppt.lam = 1.0  # weight of the rectification loss
  c.dppt.k = 4  # nearest members of an identity that make its centre
  c.dppt.loss = 'cos'  # cos|edu|mixed
  c.dppt.norm = True  # remember features of unit length
  c.dppt.target = 'global'  # or 'zeros', what the released EI code does
  c.dppt.absent = 'skip'  # identities a client lacks; 'zeros' as released

  c.dns = ConfigDict()
  c.dns.variant = 'two_stream'  # or 'one_stream'
  c.dns.tau = 0.2  # of the moving averages of the domain classifiers
  c.dns.alignment = 0.2  # weight of the distances between distributions
  c.dns.distillation = 1.0  # weight of what the domain classifiers teach

  c.deen = ConfigDict()
  c.deen.lam_cpm = 0.8  # weight of centre-pair mining
  c.deen.lam_ort = 0.01  # weight of orthogonality
  c.deen.margin = 0.3  # of the triplet loss
  c.deen.cpm_margin = 0.2  # of centre-pair mining

  c.lba = ConfigDict()
  c.lba.lam = 0.5  # weight of the dense triplet loss
  c.lba.margin = 0.3  # of it

  c.dfh = ConfigDict()
  c.dfh.lam = 5.0  # weight of the hallucinated losses
  c.dfh.alpha = (1.0,)  # of the Dirichlet law: one, or one a domain
  c.dfh.margin = 0.5  # of the triplet loss on hallucinated features
  c.dfh.space = 'f'  # pooled features, model.neck=none; or 'b', embeddings
  c.dfh.novel = 'dirichlet'  # dirichlet_mixup|feature_mixup|none
  c.dfh.loss = 'triplet'  # or 'identity'
  c.dfh.resample = 'step'  # or 'round'
  c.dfh.negative_variance = 'clamp'  # abs|resample|mean
  c.dfh.mix_weights = 'batch'  # or 'sample'
  c.dfh.mix_own = 'raw'  # own domain in a mixup; or 'hallucinated'
  c.dfh.min_identities = 2  # refuse a client with fewer
  return c.lock()


def _halved(c: Any, lr: float) -> None:
  """Halves the rate after half and three quarters of the run, as DFH does."""
  c.optim.lr, c.optim.schedule = lr, 'step'
  c.optim.milestones, c.optim.gamma = (0.5, 0.75), 0.5


def synthetic(c: Any) -> None:
  """The built-in world: three source domains, a fourth nobody trains on."""
  c.data.source = 'synthetic'
  c.data.sources = ('plaza', 'campus', 'station')
  c.data.targets = ('mall',)
  c.data.height, c.data.width = 64, 32
  c.model.name = 'convnet'
  c.augment.pad = 4
  _halved(c, 0.05)


def smoke(c: Any) -> None:
  """The same in seconds: few identities, two rounds, small images."""
  synthetic(c)
  c.rounds = 2
  c.data.height, c.data.width = 32, 16
  c.data.identities, c.data.shots = 12, 2
  c.data.target_identities = 12
  c.model.features = (16, 32)
  c.evaluation.every = 2


def folder(c: Any) -> None:
  """A tree domain/identity/image; the defaults are Omniglot's."""
  c.data.source = 'folder'
  c.data.sources = ()
  c.data.targets = ('Greek',)
  c.data.public = ''  # unlabelled images everybody may see: neither of those
  c.data.query = 'camera=01'
  c.data.height = c.data.width = 32
  c.data.channels, c.data.invert = 'grey', True
  c.data.mean, c.data.std = (0.0,), (1.0,)
  c.model.name = 'convnet'
  c.augment.pad, c.augment.flip = 3, 0.0
  _halved(c, 0.05)


def nine(c: Any) -> None:
  """Nine synthetic clients whose sizes fall as FedReIDBench's do, 131 to 1.

  Each is ranked on other persons of its own domain; nobody has seen the mall.
  """
  synthetic(c)
  c.optim.lr, c.optim.schedule = 0.05, 'constant'  # as the papers' clients
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
  # Figures of best rounds need rounds to choose from: ten, as an evaluation of
  # these targets costs half a round of training.
  c.evaluation.every = 2
