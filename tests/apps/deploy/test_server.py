"""The local page as a client of HTTP meets it."""

import base64
import contextlib
import http.client
import io
import json
import logging
import re
import socket
import threading
import time

import numpy as np
import photo_trees
import pytest
from PIL import Image

import fedreid_jax as fr
from fedreid_jax.apps.deploy import vectors
from fedreid_jax.data import decoder
from fedreid_jax.data.folder import folder_layout
from fedreid_jax.evaluation.explanation import Explanation, Side
from fedreid_jax.evaluation.strangers import Calibration
from fedreid_jax.training import snapshot

pytest.importorskip('uvicorn', reason="pip install '.[serve]'")
pytest.importorskip('starlette', reason="pip install '.[serve]'")

from fedreid_jax.apps.deploy import server
from fedreid_jax.config import validation

LIMIT = server.MEBIBYTE
PERSONS, SHOTS = 4, 3


def extractor(batch):
  """Features that tell pictures apart: some of their pixels."""

  def extract(variables, images, modalities):
    assert len(images) <= batch
    rows = images[:, ::4, ::4].reshape(len(images), -1)
    return np.c_[rows, modalities].astype(np.float32)

  return extract


def explain(variables, images, modalities):
  """Parts that tell the two images: the mean of each."""
  del variables, modalities
  sides = [
    Side(np.float32(x.mean(2)[::4, ::4] / 255), 0.25, 0.0) for x in images
  ]
  return Explanation(0.5, 'exact', *sides)


def model(metric='euclidean', explainer=lambda: explain):
  fields = {'evaluation.metric': metric, 'data.max_pixels': 10_000}
  config = validation.validate(fr.load_config('fedpav:smoke', fields))
  return snapshot.Snapshot(config, {}, 3, 'global', extractor, 'abc', explainer)


class Site:
  """A server in a thread, and a client of it."""

  def __init__(
    self, root, scratch, metric='euclidean', names=None, strangers=None
  ):
    own = model(metric)
    folder = vectors.folder_of(root, '--gallery', skip=False)
    stored = vectors.write(own, folder, scratch / 'vectors.npy')
    if names:
      folder = vectors.Folder(root, names, [])
    labels = folder_layout.labels(root, own.config.data)
    rows = np.arange(len(stored.rows))
    gallery = fr.Gallery(stored.rows, rows, metric=metric)
    self.rows, self.names, self.failures = stored.rows, folder.names, []
    self.finder = server.Finder(
      own, gallery, folder, server.Settings(5, None, labels, strangers)
    )
    made = server.make_app(self.finder, [('model', '<b>')], LIMIT, self._failed)
    self._socket = server.listen(0)
    self.address = server.address(self._socket)
    self._server = server.make_server(made)
    run = {'sockets': [self._socket]}
    self._thread = threading.Thread(target=self._server.run, kwargs=run)
    self._thread.start()

  def _failed(self, error):
    self.failures.append(error)
    return 'one line'

  def close(self):
    self._server.should_exit = True
    self._thread.join()
    self._socket.close()

  def ask(self, method, path, body=None, **headers):
    """Returns (status, headers, body); `_` stands for `-` in headers."""
    place = self.address.removeprefix('http://').rstrip('/')
    client = http.client.HTTPConnection(place, timeout=20)
    given = {name.replace('_', '-'): value for name, value in headers.items()}
    client.request(method, path, body, given)
    response = client.getresponse()
    found = response.status, response.headers, response.read()
    client.close()
    return found

  def search(self, data):
    status, _, body = self.ask('POST', '/search', data)
    assert status == 200, body
    return json.loads(body)


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
  """Persons of three cameras each, 'pN/x_c0N.png'."""
  root = tmp_path_factory.mktemp('photos')
  for person in range(PERSONS):
    for shot in range(SHOTS):
      photo_trees.save(root / f'p{person}/x_c0{shot}.png', person, shot)
  return root


@pytest.fixture(scope='module')
def site(photos, tmp_path_factory):
  found = Site(photos, tmp_path_factory.mktemp('vectors'))
  yield found
  found.close()


def test_an_image_of_the_gallery_finds_itself_first(site, photos):
  data = (photos / 'p2/x_c01.png').read_bytes()
  hits = site.search(data)['hits']
  assert len(hits) == 5
  first = hits[0]
  assert (first['name'], first['identity'], first['camera'], first['same']) == (
    *('p2/x_c01.png', 'p2', '01'),
    True,
  )
  assert first['distance'] == 0 and not any(hit['same'] for hit in hits[1:])
  own = site.rows[7]
  expected = np.linalg.norm(site.rows - own, axis=1)
  nearest = np.argsort(expected, kind='stable')[:5]
  assert [hit['row'] for hit in hits] == nearest.tolist()
  assert [hit['name'] for hit in hits] == [site.names[k] for k in nearest]
  np.testing.assert_allclose(
    [hit['distance'] for hit in hits], expected[nearest], rtol=1e-3
  )
  assert {hit['identity'] for hit in hits[:3]} == {'p2'}
  assert 'similarity' not in first and 'strangers' not in first


def test_cosines_are_shown_as_similarities(photos, tmp_path):
  site = Site(photos, tmp_path, 'cosine')
  try:
    hits = site.search((photos / 'p0/x_c00.png').read_bytes())['hits']
  finally:
    site.close()
  unit = site.rows / np.linalg.norm(site.rows, axis=1, keepdims=True)
  expected = np.sort(unit @ unit[0])[::-1][:5]
  found = [hit['similarity'] for hit in hits]
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_hits_are_compared_with_strangers(photos, tmp_path):
  known = Calibration(np.float32([0.0, 0.5]), 2, ('mall',))
  site = Site(photos, tmp_path, strangers=known)
  try:
    hits = site.search((photos / 'p0/x_c00.png').read_bytes())['hits']
  finally:
    site.close()
  assert [hit['strangers'] for hit in hits[:2]] == ['2 of 3', '3 of 3']


@pytest.mark.parametrize('how', ['turned', 'cmyk', 'palette'])
def test_photographs_are_decoded_as_those_of_the_gallery(site, tmp_path, how):
  path = tmp_path / ('q.png' if how == 'palette' else 'q.jpg')
  photo_trees.save(path, 1, 2, how)
  found = site.search(path.read_bytes())
  assert found['hits'][0]['name'] == 'p1/x_c02.png'
  status, kind, _ = site.ask('GET', f'/gallery/{found["hits"][0]["row"]}')
  assert (status, kind['content-type']) == (200, 'image/jpeg')
  assert found['query'].startswith('data:image/jpeg;base64,')


def png(*size, mode='RGB'):
  stream = io.BytesIO()
  Image.new(mode, size, 9).save(stream, 'PNG')
  return stream.getvalue()


@pytest.mark.parametrize(
  'data, status, message',
  [
    (b'', 400, 'The file is empty.'),
    (b'text', 415, 'not an image in JPEG, PNG'),
    (
      b'<svg xmlns="http://www.w3.org/2000/svg"/>',
      415,
      'not an image in JPEG, PNG',
    ),
    (png(40, 60)[:60], 400, 'Not a usable image: '),
    (png(40, 60, mode='I;16'), 400, 'not 8 bits a channel'),
    (png(101, 100), 400, '101x100 pixels, more than max_pixels=10000'),
    (bytes(LIMIT + 1), 413, 'The file is larger than 1 MiB.'),
    ([bytes(LIMIT), b'x'], 413, 'The file is larger than 1 MiB.'),  # chunked
  ],
)
def test_uploads_that_are_refused(site, data, status, message):
  found, headers, body = site.ask('POST', '/search', data)
  assert (found, headers['content-type']) == (
    status,
    'text/plain; charset=utf-8',
  )
  assert message in body.decode() and len(body.decode().splitlines()) == 1
  assert not site.failures


@pytest.mark.parametrize(
  'method, path, headers, status',
  [
    ('GET', '/', {'Host': 'evil.example'}, 400),
    ('GET', '/', {'Host': 'evil.example:80'}, 400),
    ('GET', '/', {'Host': '127.0.0.1.evil.example'}, 400),
    ('GET', '/', {'Host': '127.0.0.1:80.evil.example'}, 400),
    ('GET', '/', {'Host': 'localhost:80@evil.example'}, 400),
    ('GET', '/', {'Host': 'localhost:'}, 400),
    ('GET', '/gallery/0', {'Host': 'evil.example'}, 400),
    ('POST', '/search', {'Origin': 'http://evil.example'}, 403),
    ('POST', '/search', {'Origin': 'http://localhost:1'}, 403),
    ('POST', '/search', {'Origin': 'null'}, 403),
    ('POST', '/search', {'Sec_Fetch_Site': 'cross-site'}, 403),
    ('POST', '/search', {'Sec_Fetch_Site': 'same-site'}, 403),
    ('POST', '/why/0', {'Origin': 'http://evil.example'}, 403),
    ('POST', '/why/0', {'Sec_Fetch_Site': 'cross-site'}, 403),
    ('POST', '/why/12', {}, 404),
    ('POST', '/why/x', {}, 404),
    ('GET', '/why/0', {}, 405),
    ('GET', '/search', {}, 405),
    ('POST', '/gallery/0', {}, 405),
    ('GET', '/gallery/12', {}, 404),
    ('GET', '/gallery/-1', {}, 404),
    ('GET', '/gallery/x', {}, 404),
    ('GET', '/gallery/' + '9' * 5000, {}, 404),
    ('GET', '/gallery/p0/x_c00.png', {}, 404),
    ('GET', '/gallery/../p0/x_c00.png', {}, 404),
    ('GET', '/gallery/..%2f..%2f..%2fetc%2fpasswd', {}, 404),
    ('GET', '/../../../../etc/passwd', {}, 404),
    ('GET', '/server.py', {}, 404),
  ],
)
def test_requests_that_are_refused(site, photos, method, path, headers, status):
  data = None
  if method == 'POST':
    data = (photos / 'p0/x_c00.png').read_bytes()
  found, sent, body = site.ask(method, path, data, **headers)
  assert found == status
  assert len(body.splitlines()) == 1 and not sent['access-control-allow-origin']
  for name, value in server.HEADERS.items():
    assert sent[name] == value


def test_requests_of_the_page_itself_are_answered(site, photos):
  data = (photos / 'p0/x_c00.png').read_bytes()
  own = site.address.rstrip('/')
  port = own.rpartition(':')[2]
  for headers in (
    {'Origin': own, 'Sec_Fetch_Site': 'same-origin'},
    {'Host': f'localhost:{port}', 'Origin': f'http://localhost:{port}'},
  ):
    assert site.ask('POST', '/search', data, **headers)[0] == 200


def half_requests(site, number):
  """Connections with half a request: half a head, or half a body."""
  place = ('127.0.0.1', int(site.address.rstrip('/').rpartition(':')[2]))
  found = []
  for k in range(number):
    one = socket.create_connection(place, timeout=20)
    head = 'POST /search HTTP/1.1\r\nHost: localhost\r\n'
    if k % 2:
      head += 'Content-Length: 1000\r\n\r\nhalf'
    one.sendall(head.encode())
    found.append(one)
  return found


@pytest.mark.slow
def test_half_requests_keep_nobody_out_and_are_ended(site, monkeypatch):
  monkeypatch.setattr(server, 'SECONDS', 2.0)
  with contextlib.ExitStack() as stack:
    for one in half_requests(site, 200):
      stack.enter_context(one)
    for _ in range(5):
      assert site.ask('GET', '/gallery/0')[0] == 200
    # The last ones wait no longer than the rest.
    (last, before) = half_requests(site, 2)
    stack.enter_context(last)
    stack.enter_context(before)
    assert last.recv(100) == b''
    assert before.recv(100).startswith(b'HTTP/1.1 408')


def test_a_few_connections_end_none_of_each_other(site):
  """Browsers open several, of which some wait."""
  with contextlib.ExitStack() as stack:
    first, *others = half_requests(site, 12)
    for one in (first, *others):
      stack.enter_context(one)
    assert site.ask('GET', '/gallery/0')[0] == 200
    first.sendall(b'Content-Length: 0\r\n\r\n')
    assert first.recv(100).startswith(b'HTTP/1.1 400')  # an empty file


def test_a_part_of_a_photograph_is_searched_for(site, photos, tmp_path):
  """As if the part were the file; orientation tags are applied first."""
  pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
  turned = Image.Exif()
  turned[0x0112] = 6  # the top of the file is at the right
  whole, part = io.BytesIO(), io.BytesIO()
  Image.fromarray(pixels).save(whole, 'PNG', exif=turned)
  upright = np.rot90(pixels, -1)  # 30 high and 40 wide
  Image.fromarray(upright[3:15, 10:30].copy()).save(part, 'PNG')
  status, _, body = site.ask(
    'POST', '/search?part=0.25,0.1,0.75,0.5', whole.getvalue()
  )
  assert status == 200
  found, expected = json.loads(body), site.search(part.getvalue())
  assert [h['distance'] for h in found['hits']] == [
    h['distance'] for h in expected['hits']
  ]
  assert found['query'] == expected['query']
  other = site.search(whole.getvalue())
  assert other['hits'][0]['distance'] != found['hits'][0]['distance']


@pytest.mark.parametrize(
  'part', ['', '0,0,1', '0,0,1,2', '0.5,0,0.5,1', '0,0,nan,1', '0,0,1,1,1']
)
def test_parts_that_are_none(site, part):
  status, _, body = site.ask('POST', f'/search?part={part}', png(4, 4))
  assert status == 400 and b'not four fractions' in body
  status, _, body = site.ask('POST', '/search?part=0,0,0.1,1', png(4, 4))
  assert status == 400 and b'less than two pixels' in body


def test_a_match_is_explained_with_its_controls(site, photos, monkeypatch):
  """The pictures are of the part, of the row, and of another person."""
  seen = []

  def kept(own, images, modalities):
    seen.append((images, modalities))
    return ours(own, images, modalities)

  ours = snapshot.Snapshot.explain
  monkeypatch.setattr(snapshot.Snapshot, 'explain', kept)
  row = site.names.index('p1/x_c01.png')
  data = (photos / 'p1/x_c00.png').read_bytes()
  status, _, body = site.ask('POST', f'/why/{row}?part=0,0,0.5,1', data)
  assert status == 200, body
  found, ((images, kinds),) = json.loads(body), seen
  how = model().config.data.decoder()
  stranger = min(
    (k for k, name in enumerate(site.names) if not name.startswith('p1')),
    key=lambda k: cosine(site.rows[k], extractor(1)({}, images[:1], [0])[0]),
  )
  files = [(photos / site.names[k]).read_bytes() for k in (row, stranger)]
  expected = [decoder.decode(data, how, (0.0, 0.0, 0.5, 1.0))]
  expected += [decoder.decode(file, how) for file in files]
  np.testing.assert_array_equal(images, expected)
  assert kinds == [0, 0, 0]
  groups = found['groups']
  names = [[p['name'] for p in group['pictures']] for group in groups]
  assert names == [['query', 'match'], ['query', 'stranger'], names[0]]
  assert groups[0]['similarity'] == 'similarity 0.5000'
  total = images[0].mean(2)[::4, ::4].sum() / 255
  assert groups[0]['pictures'][0]['lines'] == [
    *(f'positions {total:+.4f}', 'constant +0.2500')
  ]
  # Fake parts depend on neither the pair nor the weights.
  assert groups[1]['pictures'][0]['lines'] == ['r +1.00']
  url = groups[0]['pictures'][0]['url']
  picture = base64.b64decode(url.removeprefix('data:image/jpeg;base64,'))
  assert Image.open(io.BytesIO(picture)).size == (128, 256)
  assert [*found['legend'].values()][1] == 'lowers the similarity'


def cosine(a, b):
  return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize(
  'change, status, message',
  [
    ({'data': b'text'}, 415, 'not an image in JPEG'),
    ({'path': '/why/0?part=1'}, 400, 'not four fractions'),
    ({'pixels': ()}, 404, 'The image cannot be read.'),
    ({'pixels': (0,)}, 404, 'no image of a stranger'),
    ({'model': model(explainer=None)}, 501, 'No explanation: this model has'),
  ],
)
def test_matches_that_cannot_be_explained(
  site, monkeypatch, change, status, message
):
  if 'pixels' in change:
    ours = site.finder._pixels
    readable = change['pixels']
    monkeypatch.setattr(
      site.finder, '_pixels', lambda k: ours(k) if k in readable else None
    )
  if 'model' in change:
    monkeypatch.setattr(site.finder, '_model', change['model'])
  path, data = change.get('path', '/why/0'), change.get('data', png(4, 4))
  found, _, body = site.ask('POST', path, data)
  assert found == status and message in body.decode()
  assert len(body.decode().splitlines()) == 1 and not site.failures


def test_an_image_of_the_gallery_is_enlarged(site, monkeypatch):
  monkeypatch.setattr(server, 'LARGE', 8)
  sizes = []
  for path in ('/gallery/0', '/gallery/0/large'):
    status, headers, body = site.ask('GET', path)
    assert status == 200 and headers['content-type'] == 'image/jpeg'
    sizes.append(Image.open(io.BytesIO(body)).size)
  assert max(sizes[1]) == 8 < max(sizes[0])
  assert site.ask('GET', '/gallery/99/large')[0] == 404


def test_no_file_outside_the_gallery_is_shown(photos, tmp_path):
  secret = tmp_path / 'secret.png'
  photo_trees.save(secret, 9, 0)
  link = photos / 'p0/link.png'
  link.symlink_to(secret)
  inside = photos / 'p0/copy.png'
  inside.symlink_to(photos / 'p0/x_c00.png')
  names = ['p0/link.png', '../' + secret.name, str(secret), 'p0', 'gone.png']
  names += ['p0/copy.png', 'p0/x_c00.png']
  names += sorted(str(p.relative_to(photos)) for p in photos.glob('p[1-3]/*'))
  try:
    with pytest.MonkeyPatch.context() as patch:
      listed = vectors.Folder(photos, names[:12], [])
      patch.setattr(server.Finder, '_compile', lambda _: None)
      gallery = fr.Gallery(np.zeros((12, 1)), range(12))
      settings = server.Settings(1, None, {})
      found = server.Finder(model(), gallery, listed, settings)
    shown = [found.picture(row) is not None for row in range(7)]
    assert shown == [False] * 5 + [True] * 2
    assert not found._has_bytes(secret.read_bytes(), link)
  finally:
    link.unlink()
    inside.unlink()


def test_an_error_of_the_program_is_one_line(site, photos, monkeypatch):
  def fail(data, part):
    raise RuntimeError('broken')

  monkeypatch.setattr(site.finder, 'find', fail)
  monkeypatch.setattr(logging, 'lastResort', None)
  status, headers, body = site.ask('POST', '/search', png(4, 4))
  assert (status, body) == (500, b'one line')
  assert headers['content-security-policy'] == server.POLICY
  assert [str(error) for error in site.failures] == ['broken']
  site.failures.clear()


def test_the_page_needs_no_other_site(site):
  texts = []
  for path, kind in (
    ('/', 'text/html'),
    ('/page.css', 'text/css'),
    ('/page.js', 'text/javascript'),
  ):
    status, headers, body = site.ask('GET', path)
    assert status == 200 and headers['content-type'].startswith(kind)
    texts.append(body.decode())
  page, _, script = texts
  assert '//' not in ''.join(texts).replace('// ', '').replace('  //', '')
  assert '&lt;b&gt;' in page and f'data-limit="{LIMIT}"' in page
  assert '<label for="photograph">' in page and 'id="photograph"' in page
  assert 'role="status"' in page and 'role="alert"' in page
  assert 'innerHTML' not in script
  # The policy allows no style, program or handler in the page itself.
  assert not re.search(r'<style|\son\w+=|\sstyle=|<script>', page)


def test_queries_at_the_same_time_get_their_own_answers(site, photos):
  found = {}

  def search(name):
    found[name] = site.search((photos / name).read_bytes())['hits'][0]['name']

  names = [f'p{person}/x_c00.png' for person in range(PERSONS)]
  threads = [threading.Thread(target=search, args=(name,)) for name in names]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert found == {name: name for name in names}


def test_a_port_in_use_is_refused():
  first = server.listen(0)
  port = first.getsockname()[1]
  try:
    with pytest.raises(fr.errors.ResourceError) as info:
      server.listen(port)
  finally:
    first.close()
  assert info.value.line() == (
    'error[6]: the port cannot be used: address already in use — '
    f'127.0.0.1:{port} — give another --port, or --port=0 for any free one'
  )
  again = server.listen(port)  # it is free as soon as the first one ends
  again.close()


def test_a_server_that_served_frees_its_port_at_once(photos, tmp_path):
  site = Site(photos, tmp_path)
  port = int(site.address.rstrip('/').rpartition(':')[2])
  started = time.monotonic()
  assert site.ask('GET', '/')[0] == 200
  site.close()
  server.listen(port).close()
  assert time.monotonic() - started < 10
