"""Nearest images of a gallery, and the page that shows them."""

import base64
import io
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import fedreid_jax as fr
from fedreid_jax.apps.deploy import image_search
from fedreid_jax.apps.deploy.image_search import Answer, Hit
from fedreid_jax.evaluation.strangers import Calibration

NAMES = ['a', 'b', 'copy of a', 'd', 'e']


@pytest.fixture
def root(tmp_path):
  """Five files in a folder; the third has the bytes of the first."""
  for name in NAMES:
    (tmp_path / name).write_text(name)
  shutil.copyfile(tmp_path / 'a', tmp_path / 'copy of a')
  return tmp_path


def search(root, queries, k, **options):
  """Searches where the file at position p has the vector [p]."""
  points = np.arange(5, dtype=np.float32)[:, None]
  gallery = fr.Gallery(points, np.arange(5))
  at = np.array([[value] for value in queries.values()], np.float32)
  return image_search.search(gallery, root, NAMES, at, [*queries], k, **options)


def names(answer):
  return [hit.name for hit in answer.hits]


def test_the_nearest_first(root, tmp_path_factory):
  other = tmp_path_factory.mktemp('other') / 'query'
  other.write_text('another')
  answers = search(root, {other: 0.9, root / 'e': 4}, 2)
  assert [answer.query for answer in answers] == [other, root / 'e']
  assert [names(answer) for answer in answers] == [['b', 'a'], ['e', 'd']]
  first = answers[0].hits[0]
  assert first.path == root / 'b' and not first.same
  assert first.distance == pytest.approx(0.1, abs=1e-6)
  assert [hit.same for hit in answers[1].hits] == [True, False]


def test_hits_have_the_share_of_strangers_as_near(root):
  known = Calibration(np.float32([0.5, 2]), 3, ('mall',))
  (answer,) = search(root, {root / 'a': 0}, 5, strangers=known)
  found = [hit.strangers for hit in answer.hits]
  assert found == ['1 of 3', '2 of 3', '3 of 3', '3 of 3', '3 of 3']
  page = image_search.page([answer], [])
  assert page.count('strangers as near: 1 of 3<') == 1
  (plain,) = search(root, {root / 'a': 0}, 5)
  assert 'strangers' not in image_search.page([plain], [])


def test_rows_that_an_index_has_not_found_are_no_hits(root):
  rows, near = np.array([3, -1, -1]), np.float32([1, np.inf, np.inf])
  found = image_search.hits(root, NAMES, rows, near, lambda _: False)
  assert [hit.name for hit in found] == ['d']


def test_the_query_and_its_copies_are_marked_or_left_out(root):
  query = {root / 'a': 0}
  (answer,) = search(root, query, 4)
  assert [hit.same for hit in answer.hits] == [True, False, True, False]
  for k, expected in ((1, 'b'), (2, 'bd'), (3, 'bde'), (4, 'bde'), (9, 'bde')):
    (answer,) = search(root, query, k, exclude_same_file=True)
    assert names(answer) == list(expected)


def test_a_moment_of_a_video_is_shown_once(root):
  """The names of the folder are of one video but for the last one."""
  times = {name: float(k) for k, name in enumerate(NAMES[:4])}
  query = {root / 'a': 0}
  for seconds, expected in ((0, 'abcde'), (1, 'abcde'), (2, 'ace'), (9, 'ae')):
    apart = image_search.Apart(seconds, times)
    (answer,) = search(root, query, 5, apart=apart)
    assert [name[0] for name in names(answer)] == list(expected)
    (answer,) = search(root, query, 2, exclude_same_file=True, apart=apart)
    # The moment of the query counts, too.
    others = [x for x in expected if x not in 'ac']
    assert [name[0] for name in names(answer)] == others[:2]


def test_a_link_and_a_copy_elsewhere_are_the_same_file(root, tmp_path_factory):
  folder = tmp_path_factory.mktemp('queries')
  shutil.copyfile(root / 'b', folder / 'copy')
  (folder / 'link').symlink_to(root / 'b')
  for query in (folder / 'copy', folder / 'link'):
    (answer,) = search(root, {query: 1}, 2)
    assert [(hit.name, hit.same) for hit in answer.hits] == [
      ('b', True),
      ('a', False),
    ]


def test_more_than_the_gallery_has(root):
  (answer,) = search(root, {root / 'd': 3}, 50)
  assert sorted(names(answer)) == sorted(NAMES)


def test_images_that_are_gone_have_their_path_only(root):
  for name in NAMES:
    (root / name).unlink()
  (answer,) = search(root, {root / 'd': 3}, 2, exclude_same_file=True)
  assert names(answer) == ['copy of a', 'e']


VOID = {'meta', 'img', 'link', 'br', 'hr', 'input', 'wbr'}


class Page(HTMLParser):
  """Collects tags and texts, and checks that elements are closed."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.texts, self._open = [], [], []
    self.feed(text)
    self.close()
    assert not self._open

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in VOID:
      self._open.append(tag)

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def handle_data(self, data):
    if data.strip():
      self.texts.append(data)

  def all(self, tag):
    return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def answers(tmp_path):
  files = []
  for name, size in (('<q>.png', (900, 1800)), ('Zoë & b.jpg', (60, 20))):
    files.append(tmp_path / name)
    Image.new('RGB', size, (200, 30, 30)).save(files[-1])
  query, found = files
  hits = [
    Hit('Zoë & b.jpg', found, 0.123456, False),
    Hit('gone.jpg', tmp_path / 'gone.jpg', 2.5, True),
  ]
  return [Answer(query, hits), Answer(found, [])]


def test_pictures_are_in_the_page_with_a_text_each(answers):
  page = Page(image_search.page(answers, [('model', 'a < b')]))
  images = page.all('img')
  assert len(images) == 3
  for image in images:
    head, _, code = image['src'].partition(',')
    assert head == 'data:image/jpeg;base64'
    with Image.open(io.BytesIO(base64.b64decode(code))) as picture:
      assert max(picture.size) <= image_search.SIDE
  assert images[1]['alt'] == 'rank 1: Zoë & b.jpg, distance 0.1235'
  assert images[0]['alt'] == f'query: {answers[0].query}'
  (gone,) = [a for a in page.all('div') if a.get('role') == 'img']
  assert gone['aria-label'] == 'rank 2: gone.jpg, distance 2.5000'
  assert {'rank 1', 'distance 0.1235', 'Zoë & b.jpg', 'a < b'} <= {*page.texts}
  assert page.texts.count(image_search.SAME) == 1


def test_the_structure_of_the_page(answers):
  page = Page(image_search.page(answers, []))
  assert page.all('html') == [{'lang': 'en'}]
  assert len(page.all('h1')) == 1 and len(page.all('h2')) == 2
  names = {attrs['id'] for attrs in page.all('h2')}
  assert {a['href'] for a in page.all('a')} == {f'#{name}' for name in names}
  assert {s['aria-labelledby'] for s in page.all('section')} == names
  assert {
    'name': 'viewport',
    'content': 'width=device-width, initial-scale=1',
  } in page.all('meta')


def test_nothing_is_fetched_and_no_name_is_markup(answers):
  text = image_search.page(answers, [('model', '<script>x</script>')])
  page = Page(text)
  assert "default-src 'none'" in text and '<script' not in text
  assert not page.all('script') and not page.all('link')
  for _, attrs in page.tags:
    for key in ('src', 'href'):
      assert attrs.get(key, '#').startswith(('#', 'data:'))
  assert '://' not in text


def test_a_large_file_is_not_decoded(answers):
  text = image_search.page(answers, [], max_pixels=900 * 1800 - 1)
  page = Page(text)
  assert len(page.all('img')) == 2
  assert 'no picture' in page.texts
