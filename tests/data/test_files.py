import os

import pytest

from fedreid_jax import errors
from fedreid_jax.data import files, heic


@pytest.mark.parametrize('name', ['a.zip', 'a.TAR', 'a.tar.gz', 'a.7z'])
def test_an_archive_is_to_be_unpacked_first(tmp_path, name):
  (tmp_path / name).write_bytes(b'PK')
  with pytest.raises(errors.DataError) as caught:
    files.check_root(str(tmp_path / name), '--root')
  assert caught.value.line() == (
    f'error[3]: {tmp_path / name} is an archive — --root — '
    'unpack it first and give the folder'
  )


def test_roots_that_are_none(tmp_path):
  (tmp_path / 'file').touch()
  for root, what in (
    ('', 'no folder given'),
    (str(tmp_path / 'none'), 'does not exist'),
    (str(tmp_path / 'file'), 'is no folder'),
    ('~no-such-user/a', 'cannot be opened'),
    ('a' * 5000, 'cannot be opened'),
  ):
    with pytest.raises(errors.DataError, match=what):
      files.check_root(root)


def test_root_is_resolved(tmp_path):
  (tmp_path / 'real').mkdir()
  (tmp_path / 'link').symlink_to('real')
  assert files.check_root(tmp_path / 'link') == (tmp_path / 'real').resolve()


def test_files_are_sorted_and_leftovers_passed_over(tmp_path):
  for name in ('b/2.JPG', 'b/1.jpg', 'a.png', '._a.png', 'b/Thumbs.db'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
  (tmp_path / '.hidden').mkdir()
  (tmp_path / '.hidden/c.jpg').touch()
  assert files.list_files(tmp_path) == ['a.png', 'b/1.jpg', 'b/2.JPG']
  assert files.list_files(tmp_path, 'b') == ['b/1.jpg', 'b/2.JPG']


def test_files_that_are_not_used_are_counted_by_kind(tmp_path, monkeypatch):
  monkeypatch.setattr(heic, 'installed', lambda: False)
  for name in ('1.HEIC', 'b/2.heic', 'b/a.jpg', 'notes', 'b/Thumbs.db', '.x'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
  used = files.list_images(tmp_path)
  assert used == ['b/a.jpg']
  assert files.count_others(tmp_path, used) == '2 .heic, 1 without end'
  assert files.count_others(tmp_path / 'b', ['2.heic', 'a.jpg']) == ''
  monkeypatch.setattr(heic, 'installed', lambda: True)
  used = files.list_images(tmp_path)
  assert used == ['1.HEIC', 'b/2.heic', 'b/a.jpg']
  assert files.count_others(tmp_path, used) == '1 without end'


@pytest.mark.parametrize(
  'names', [('A.jpg', 'a.jpg'), ('é.jpg', 'e\u0301.jpg')]
)
def test_names_that_some_disks_hold_equal(tmp_path, names):
  for name in names:
    (tmp_path / name).touch()
  with pytest.raises(errors.DataError, match='differ in case only'):
    files.list_files(tmp_path)


def test_links(tmp_path):
  root = tmp_path / 'root'
  (root / 'a').mkdir(parents=True)
  (root / 'a/1.jpg').touch()
  (root / 'b.jpg').symlink_to('a/1.jpg')
  assert files.list_files(root) == ['a/1.jpg', 'b.jpg']
  (tmp_path / 'secret').touch()
  for target, what in (
    ('../secret', 'link leads out of the folder'),
    ('nothing', 'link is broken'),
    ('c', 'link is broken'),  # to itself
    ('a', 'link leads to a folder'),
    ('..', 'link leads out of the folder'),
  ):
    (root / 'c').symlink_to(target)
    with pytest.raises(errors.DataError, match=what):
      files.list_files(root)
    (root / 'c').unlink()


def test_folders_that_cannot_be_read(tmp_path, monkeypatch):
  def refuse(path):
    raise PermissionError(13, 'Permission denied', str(path))

  monkeypatch.setattr(os, 'scandir', refuse)
  with pytest.raises(errors.DataError, match='cannot be read: Permission'):
    files.list_files(tmp_path)
  bad: files.Bad = []
  assert files.list_images(tmp_path, bad) == []
  assert bad == [('', 'Permission denied')]


def test_pipes_and_names_that_are_no_text(tmp_path):
  os.mkfifo(tmp_path / 'pipe.jpg')
  with pytest.raises(errors.DataError, match='not a regular file'):
    files.list_files(tmp_path)
  (tmp_path / 'pipe.jpg').unlink()
  with open(os.fsencode(tmp_path) + b'/\xff.jpg', 'w'):
    pass
  with pytest.raises(errors.DataError, match=r'xff.* is not UTF-8'):
    files.list_files(tmp_path)
  os.unlink(os.fsencode(tmp_path) + b'/\xff.jpg')
  (tmp_path / 'a\x1b]0;b.jpg').touch()
  with pytest.raises(errors.DataError, match='has control characters'):
    files.list_files(tmp_path)


def test_names_in_any_script_are_fine(tmp_path):
  names = ['a\u00a0b', 'é', '人\u3000物', '👩\u200d🔬']
  for name in names:
    (tmp_path / name).mkdir()
  (tmp_path / 'file').touch()
  (tmp_path / '.hidden').mkdir()
  assert files.list_folders(tmp_path) == sorted(names)


def test_images_are_found_by_the_end_of_their_name_and_sorted(tmp_path):
  names = ['b/Zoë.JPG', 'a.png', 'b/a.jpeg', 'b/c/x y.webp', 'é.bmp', 'É.tiff']
  for name in [*names, 'notes.txt', 'b/a.jpg.part', '.h.png', 'jpg']:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
  os.mkfifo(tmp_path / 'pipe')
  assert files.list_images(tmp_path) == sorted(names)
  (tmp_path / 'A.png').touch()  # refused in a data set, not in a folder
  assert 'A.png' in files.list_images(tmp_path)


def test_what_cannot_be_used_is_refused_or_collected(tmp_path):
  (tmp_path / 'good.png').touch()
  (tmp_path / 'broken.png').symlink_to('nothing')
  (tmp_path / 'broken.txt').symlink_to('nothing')
  with pytest.raises(errors.DataError, match='link is broken'):
    files.list_images(tmp_path)
  (tmp_path / 'loop').symlink_to('.')
  os.mkfifo(tmp_path / 'pipe.jpg')
  bad: files.Bad = []
  assert files.list_images(tmp_path, bad) == ['good.png']
  assert sorted(bad) == [
    ('broken.png', 'the link is broken'),
    ('loop', 'the link leads to a folder'),
    ('pipe.jpg', 'not a regular file'),
  ]


@pytest.mark.parametrize(
  'name', ['@eaDir', '#recycle', '$RECYCLE.BIN', 'lost+found', '__MACOSX']
)
@pytest.mark.parametrize('below', ['', 'a', 'a/b'])
def test_folders_of_devices_have_no_images_of_people(tmp_path, name, below):
  (tmp_path / 'a' / 'b').mkdir(parents=True)
  own = ['a/1.jpg', 'a/b/2.jpg', 'eaDir/3.jpg']
  junk = tmp_path / below / name / 'deep'
  for path in (*(tmp_path / x for x in own), junk / '4.JPG', junk / 'x.txt'):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'x')
  assert files.list_files(tmp_path) == own
  assert files.list_images(tmp_path) == own
  assert files.list_others(tmp_path, own) == []
  assert files.list_folders(tmp_path) == ['a', 'eaDir']
  said = files.set_aside(tmp_path)
  assert said.startswith(f'left out: 1 image in {name}, which devices')
  assert files.set_aside(tmp_path / 'eaDir') == ''


@pytest.mark.parametrize(
  'name',
  [
    *('@tmp', '@sharebin', '@SynoResource', '@__thumb', '@snapshots'),
    *('FOUND.000', 'RECYCLED', 'Recycle Bin', '$WinREAgent', '#recycle'),
    *('Network Trash Folder', 'Temporary Items', 'Trash', 'Thumbnails'),
    *('thumbs', '_thumbs', 'My Previews.lrdata', 'Photos.photoslibrary'),
  ],
)
def test_folders_of_devices(name):
  assert files.is_device_folder(name)


@pytest.mark.parametrize('name', ['#12', 'found.it', 'anna', 'recycler 2'])
def test_folders_of_persons(name):
  assert not files.is_device_folder(name)
