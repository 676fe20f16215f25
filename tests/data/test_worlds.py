"""The versions of the synthetic world: what stays and what they are like."""

import colorsys
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.config import schema
from fedreid_jax.data import load
from fedreid_jax.data.synthetic import (
  parameters,
  photographs,
  synthetic_source,
  versions,
  worlds,
)

GOLDEN = Path(__file__).parents[1] / 'golden' / 'synthetic_v1.npz'
CASES = {
  'plaza': dict(domain=0),
  'mall': dict(domain=3, seed=7, first_identity=5),
  'alley_infrared': dict(
    domain=7, modality='infrared', brightness_correlation=0.5
  ),
  'garden_spread': dict(domain=11, camera_spread=3.0),
}
NUM = 256
GARMENTS = (parameters.UPPER, parameters.LOWER)


@pytest.mark.parametrize('name', CASES)
def test_the_first_world_has_the_pixels_it_had(name):
  """Types of CPU may round a few pixels to the next level."""
  images = photographs.generate(
    **CASES[name],
    identities=3,
    cameras=2,
    shots=2,
    height=16,
    width=8,
    source='synthetic_v1',
  ).images
  with np.load(GOLDEN) as golden:
    difference = np.abs(images.astype(int) - golden[name])
  assert difference.max() <= 1 and (difference > 0).mean() < 1e-3


def scenes(source, domain, seed=0, num=NUM):
  """Parameters of the first shots of persons by cameras of their own."""
  return _scenes(worlds.find(source), domain, seed, jnp.arange(num))


@functools.partial(jax.jit, static_argnums=0)
def _scenes(world, domain, seed, each):
  def one(k):
    zero = jnp.int32(0)
    return world.sample(
      jax.random.key(seed),
      jnp.int32(domain),
      k,
      k,
      zero,
      modality=zero,
      brightness_correlation=0.0,
    )

  return jax.vmap(one)(each)


def hues(source, domain, seed):
  """Hue of each garment, in [0, 1); -1 for black, grey and white."""
  colours = np.asarray(scenes(source, domain, seed)[0].materials)
  colours = colours[:, GARMENTS, :3].reshape(-1, 3)
  hsv = np.array([colorsys.rgb_to_hsv(*colour) for colour in colours])
  return np.where((hsv[:, 1] > 0.2) & (hsv[:, 2] > 0.12), hsv[:, 0], -1)


@pytest.mark.parametrize('seed', [0, 5])
def test_no_hue_dominates_a_domain(seed):
  """At most a third of the garments are within 30 degrees of hue."""
  starts = np.arange(0, 1, 1 / 72)[:, None]
  for domain in range(len(photographs.DOMAIN_NAMES)):
    found = hues('synthetic', domain, seed)
    inside = (found >= 0) & ((found - starts) % 1 < 1 / 12)
    assert inside.mean(axis=1).max() < 1 / 3
    assert 0.25 < (found < 0).mean() < 0.75


def test_green_is_the_colour_of_the_first_world_only():
  def green(source):
    found = [hues(source, domain, 0) for domain in range(8)]
    return np.array([((h > 0.2) & (h < 0.46)).mean() for h in found])

  assert (green('synthetic_v1') > 0.2).mean() >= 0.5
  assert green('synthetic').max() < 0.15


def test_fashions_differ_between_domains():
  means = []
  for domain in range(8):
    materials = scenes('synthetic', domain)[0].materials[:, GARMENTS, :3]
    halves = np.asarray(materials).reshape(2, NUM // 2, -1)
    means.append(np.sort(halves, axis=1)[:, :: NUM // 16].reshape(2, -1))
  means = np.stack(means)
  within = np.linalg.norm(means[:, 0] - means[:, 1], axis=-1)
  between = np.linalg.norm(means[:, None, 0] - means[None, :, 1], axis=-1)
  np.fill_diagonal(between, np.inf)
  assert (between.min(axis=1) > within).mean() > 0.7


def test_boxes_are_those_of_a_detector():
  person, _, shot, _ = scenes('synthetic', 0, num=1024)
  view = worlds.find('synthetic').view
  edges = jnp.array([0.0, 1.0])[:, None], jnp.zeros((1, 1))
  down = jax.vmap(lambda p, s: view.frame(p, s, edges[1], edges[0]).down)
  top, bottom = np.asarray(down(person, shot))[:, :, 0].T
  assert 0.10 < (bottom < 0.93).mean() < 0.40  # cut feet
  assert 0.02 < (top > 0.01).mean() < 0.15  # cut head
  assert 0.05 < (bottom - top > 1.25).mean() < 0.25  # too large
  assert (bottom > 0.6).all() and (top < 0.15).all()
  assert (np.abs(shot.left) > 0.06).mean() > 0.05  # beside the person


def test_persons_of_one_version_are_others_in_the_next():
  first, second = (scenes(source, 2)[0] for source in versions.VERSIONS)
  for field in ('height', 'build', 'shoulders'):
    one, two = (np.asarray(getattr(p, field)) for p in (first, second))
    assert np.abs(one - two).max() > 0.05
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.25


def test_a_name_without_a_version_is_the_newest_one():
  assert worlds.find('synthetic') is worlds.find(versions.NEWEST)
  assert worlds.find('synthetic') is not worlds.find(versions.FIRST)
  assert versions.of_file('synthetic') == versions.FIRST
  for function in (versions.resolve, versions.of_file):
    assert [function(v) for v in versions.VERSIONS] == [*versions.VERSIONS]
    assert function('folder') == 'folder'
  with pytest.raises(errors.ConfigError, match='synthetic_v1'):
    worlds.find('synthetic_v9')


def test_every_version_is_a_source_with_a_digest_of_its_own(monkeypatch):
  config = schema.default().data
  config.sources, config.targets = ('plaza',), ('mall',)
  asked, digests = [], []

  def images(*sizes, source, **options):
    asked.append(source)
    return np.zeros((1, 1, 1, 3), np.uint8)

  monkeypatch.setattr(synthetic_source.kept, 'images', images)
  for config.source in versions.NAMES:
    assert load.SOURCES[config.source] is synthetic_source.load
    source = synthetic_source.load(config)
    digests.append(source.digest)
    source.domains[0].images()
  assert digests[0] == digests[2] != digests[1]
  assert [worlds.find(source) for source in asked] == [
    worlds.find(source) for source in versions.NAMES
  ]
  # Runs from before there were versions have this digest.
  assert digests[1].startswith('plaza,synthetic,')
