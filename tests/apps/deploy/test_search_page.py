"""The page of a search: whole, safe and readable without pictures."""

import base64
import io
from html.parser import HTMLParser

import pytest
from PIL import Image

from fedreid_jax.apps.deploy.search import search_page, thumbnail
from fedreid_jax.apps.deploy.search.image_search import Answer, Hit

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
  page = Page(search_page.page(answers, [('model', 'a < b')]))
  images = page.all('img')
  assert len(images) == 3
  for image in images:
    head, _, code = image['src'].partition(',')
    assert head == 'data:image/jpeg;base64'
    with Image.open(io.BytesIO(base64.b64decode(code))) as picture:
      assert max(picture.size) <= thumbnail.SIDE
  assert images[1]['alt'] == 'rank 1: Zoë & b.jpg, distance 0.1235'
  assert images[0]['alt'] == f'query: {answers[0].query}'
  (gone,) = [a for a in page.all('div') if a.get('role') == 'img']
  assert gone['aria-label'] == 'rank 2: gone.jpg, distance 2.5000'
  assert {'rank 1', 'distance 0.1235', 'Zoë & b.jpg', 'a < b'} <= {*page.texts}
  assert page.texts.count(search_page.SAME) == 1


def test_the_structure_of_the_page(answers):
  page = Page(search_page.page(answers, []))
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
  text = search_page.page(answers, [('model', '<script>x</script>')])
  page = Page(text)
  assert "default-src 'none'" in text and '<script' not in text
  assert not page.all('script') and not page.all('link')
  for _, attrs in page.tags:
    for key in ('src', 'href'):
      assert attrs.get(key, '#').startswith(('#', 'data:'))
  assert '://' not in text


def test_a_large_file_is_not_decoded(answers):
  text = search_page.page(answers, [], max_pixels=900 * 1800 - 1)
  page = Page(text)
  assert len(page.all('img')) == 2
  assert 'no picture' in page.texts
