"""The fields of `data`: images and their split over clients."""

import dataclasses
from typing import Annotated, Literal

from fedreid_jax.core.options import (
  PIXELS,
  SEED,
  Mark,
  Natural,
  Positive,
  Range,
  Regex,
  Share,
)
from fedreid_jax.core.plugins import SOURCE
from fedreid_jax.data import names
from fedreid_jax.data.client_split import ClientSplit, Labels
from fedreid_jax.data.datasets.records import Direction
from fedreid_jax.data.decoder import MAX_PIXELS, Decoder, Resample
from fedreid_jax.data.poison import Poison
from fedreid_jax.data.synthetic import versions


@dataclasses.dataclass(frozen=True)
class Data:
  """Images and their split over clients."""

  source: Annotated[
    Literal[versions.Name, 'folder', 'datasets'] | str,
    SOURCE,
    'source of the images; synthetic is the newest version of the rendered '
    'world',
  ] = versions.UNVERSIONED
  root: Annotated[
    str,
    'folder: directory of the domains or of one data set; datasets: directory '
    'of one data set or of all',
  ] = ''
  task: Annotated[
    Literal['retrieval', 'classification'],
    'retrieval of persons, or classification with classes common to all '
    'clients',
  ] = 'retrieval'
  client_split: Annotated[
    ClientSplit,
    'split of the images over clients; iid and dirichlet split one domain over '
    'num_clients, camera_ and entity_ are visible-infrared',
  ] = 'by_dataset'
  undivided: Annotated[
    tuple[str, ...],
    'by_camera, by_identity: domains that are one client each, as a source '
    'beside the cameras of another domain',
  ] = ()
  num_clients: Annotated[Positive, 'iid, dirichlet: number of clients'] = 4
  concentration: Annotated[
    float,
    Range(1e-3),
    "dirichlet: concentration of each class's distribution over the clients",
  ] = 0.5
  labels: Annotated[Labels, 'label space of a shared classifier'] = ''
  unlabelled: Annotated[
    tuple[str, ...],
    "domains whose clients have no labels, or 'all': a label is then the index "
    'of an image, and identities are used for metrics of clusters only',
  ] = ()
  sources: Annotated[
    tuple[str, ...],
    'domains to train on, one client per domain; empty means all remaining '
    'domains',
  ] = ()
  without: Annotated[
    tuple[str, ...],
    Mark.LATER,
    'clients, and persons as DOMAIN/PERSON, whose images are left out of the '
    'training as if they had never been there',
  ] = ()
  targets: Annotated[
    tuple[str, ...],
    'held-out domains for evaluation; synthetic: NAME:shift=KIND has the '
    'persons of NAME after a shift of one kind (colour, resolution, viewpoint, '
    'background, clothing, noise, all)',
  ] = ()
  held_out: Annotated[
    float,
    Range(0, 0.9),
    'folder: above 0, the last domain is the target if none is given; for a '
    'single data set this fraction of its identities is held out',
  ] = 0.0
  public: Annotated[
    str, 'domain of unlabelled images that the server and all clients can use'
  ] = ''
  query: Annotated[
    str,
    "folder: queries of a target: 'random' (an image of each identity, by each "
    "camera with several), 'first_per_camera', 'first' (of each identity) or "
    "'camera=NAME+NAME'",
  ] = 'first_per_camera'
  identity_pattern: Annotated[
    str,
    Regex(1),
    'folder: regular expression of the path within a domain; its group is the '
    'identity',
  ] = names.IDENTITY
  camera_pattern: Annotated[
    str,
    Regex(1, ('', names.AUTO)),
    'folder: regular expression of the path within a domain; its group is the '
    "camera. 'auto' recognises 0001_c1s1_1.jpg, x_c1.jpg, cam1/x.jpg and "
    "x_01.jpg. Without a match, or if it is '', there are no cameras",
  ] = names.NUMBER
  height: Annotated[
    int,
    PIXELS,
    'image height in pixels; images are resized once, when they are read',
  ] = 64
  width: Annotated[int, PIXELS, 'image width in pixels'] = 32
  channels: Annotated[Literal['rgb', 'grey'], 'channels of images'] = 'rgb'
  invert: Annotated[
    bool, 'folder: invert images, for dark strokes on a white background'
  ] = False
  colour_as: Annotated[
    tuple[Literal['grey', 'inverted'], ...],
    'folder: conversions that colour images may undergo; channels=grey and '
    'invert=True add theirs if a user writes them, not if a preset sets them',
  ] = ()
  mean: Annotated[
    tuple[float, ...], 'mean of the normalisation, one value per channel'
  ] = (0.485, 0.456, 0.406)
  std: Annotated[
    tuple[float, ...],
    'standard deviation of the normalisation, one value per channel',
  ] = (0.229, 0.224, 0.225)
  on_bad_image: Annotated[
    Literal['error', 'skip'], 'treatment of unreadable files'
  ] = 'error'
  resample: Annotated[Resample, 'filter for resizing'] = 'bicubic'
  max_pixels: Annotated[
    int,
    Range(64, 89_478_485),  # Pillow does not open larger files.
    'maximum number of pixels of a file; a larger file is not decoded',
  ] = MAX_PIXELS
  fast_decode: Annotated[
    bool, 'decode JPEG files at a fraction of their size; pixels differ'
  ] = False
  allow_overlap: Annotated[
    bool, 'allow a domain, or identical files, in both sources and targets'
  ] = False
  world_seed: Annotated[
    int, SEED, 'random seed of synthetic images and random splits'
  ] = 0
  poison: Annotated[
    Poison,
    'attack by the images of some clients: flip, shuffle and merge change '
    'identities, backdoor teaches a trigger; for measurements of robustness',
  ] = ''
  poisoned: Annotated[
    tuple[str, ...], 'names of the clients with poisoned images'
  ] = ()
  trigger_share: Annotated[
    Share, 'backdoor: share of the images with the trigger'
  ] = 0.3
  camera_spread: Annotated[
    float,
    Range(1, 8),
    'synthetic: factor of the differences between cameras in colour, exposure, '
    'contrast, resolution and noise',
  ] = 1.0
  presence: Annotated[
    float,
    Range(0.05, 1),
    "synthetic: fraction of a source domain's identities that every second "
    'camera sees; the other cameras see all',
  ] = 1.0
  identities: Annotated[
    Positive, 'synthetic: number of identities of a source domain'
  ] = 48
  cameras: Annotated[
    Natural, 'synthetic: number of visible cameras of every domain'
  ] = 4
  infrared: Annotated[
    Natural, 'synthetic: number of infrared cameras of every domain'
  ] = 0
  brightness_correlation: Annotated[
    Share,
    "synthetic: weight of a garment's visible brightness in its infrared "
    'reflectance; the rest is random',
  ] = 0.0
  shots: Annotated[
    Positive, 'synthetic: number of images of an identity per camera'
  ] = 4
  target_identities: Annotated[
    Positive, 'synthetic: number of identities of a target domain'
  ] = 60
  direction: Annotated[
    Direction, 'visible-infrared: modality of queries, then of the gallery'
  ] = 'infrared-visible'
  search: Annotated[
    Literal['all', 'indoor'], 'SYSU-MM01: cameras of the gallery'
  ] = 'all'
  shots_per_camera: Annotated[
    Positive,
    'SYSU-MM01: gallery images per camera, 1 (single-shot) or 10 (multi-shot)',
  ] = 1
  gallery_sampling: Annotated[
    Literal['agw', 'official'], 'SYSU-MM01: sampling of galleries'
  ] = 'agw'
  trials: Annotated[
    int, Range(1, 10), 'SYSU-MM01, LLCM: number of random galleries'
  ] = 10
  tracklet: Annotated[
    Natural,
    'synthetic: number of consecutive shots of a person by a camera that are '
    'the frames of one tracklet, 0 for single images',
  ] = 0
  target_shots: Annotated[
    int,
    Range(2),
    'synthetic: images of an identity per camera of a target; the first is a '
    'query, the others are in the gallery',
  ] = 2

  def decoder(self) -> Decoder:
    """The decoder of the image files that these fields describe."""
    return Decoder(
      self.height,
      self.width,
      3 if self.channels == 'rgb' else 1,
      self.invert,
      self.on_bad_image,
      self.resample,
      self.max_pixels,
      self.fast_decode,
    )
