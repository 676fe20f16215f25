"""Manifests as spreadsheets and scripts write them."""

import unicodedata

import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data.datasets import csv_manifest

PLAIN = 'path,identity,camera\nim/a é.png,José P,door 1\nim/b.png,Zoë,door 2\n'


def rows(root, text, columns=('path', 'identity')):
  """Reads a manifest beside two images, the first with a composed name."""
  (root / 'im').mkdir()
  for name in ('a é', 'b'):
    Image.new('RGB', (2, 4)).save(root / f'im/{name}.png')
  data = text if isinstance(text, bytes) else text.encode()
  (root / 'manifest.csv').write_bytes(data)
  return csv_manifest.rows(root, columns)


@pytest.mark.parametrize(
  'change',
  [
    lambda t: t.encode('utf-8-sig'),
    lambda t: t.encode('utf-16'),
    lambda t: t.replace(',', ';'),
    lambda t: t.replace(',', '\t'),
    lambda t: t.replace(',', '|'),
    lambda t: 'sep=;\r\n' + t.replace(',', ';').replace('\n', '\r\n'),
    lambda t: '"sep=,"\n' + t,
    lambda t: t.replace('\n', '\r'),
    lambda t: ('sep=;\n' + t.replace(',', ';')).replace('\n', '\r'),
    lambda t: ''.join(f'"{line}"\n' for line in t.splitlines()),
    lambda t: t.replace('im/b.png,Zoë,door 2', '"im/b.png,""Zoë"",door 2"'),
    lambda t: t + '@eaDir/a.png,ann,1\n',
    lambda t: t.replace('path,identity', ' Path ,"Identity"'),
    lambda t: t.replace('im/', 'im\\'),
    lambda t: t.replace('im/', './im//'),
    lambda t: t + ',,\n\n , ,\n',
    lambda t: t.replace('\n', ',,\n'),
    lambda t: t.replace('Zoë', ' Zoë\u00a0').replace('door 1', 'door\u00a01 '),
    lambda t: t.replace('Zoë', 'Zoë\u200b').replace('José P', 'José  P'),
    lambda t: t.replace('Zoë', 'Z\u00ado\u200dë\u202a\u202c\u2068\u2069'),
    lambda t: unicodedata.normalize('NFD', t),
    lambda t: t.replace('im/b.png', '"im/b.png"'),
    lambda t: t.replace('im/b.png,', '"im/b.png" ,'),
  ],
)
def test_dialects_are_read_alike(tmp_path, change):
  (tmp_path / 'm').mkdir()
  found = rows(tmp_path / 'm', change(PLAIN))
  assert found == [
    {'path': 'im/a é.png', 'identity': 'José P', 'camera': 'door 1'},
    {'path': 'im/b.png', 'identity': 'Zoë', 'camera': 'door 2'},
  ]


@pytest.mark.parametrize(
  'change, message',
  [
    (
      lambda t: t.replace('Zoë', 'josé p'),
      "identity 'José P' and 'josé p' differ in case only",
    ),
    (
      lambda t: t.replace('door 2', 'Door 1'),
      "camera 'door 1' and 'Door 1' differ in case only",
    ),
    *(
      (
        lambda t, other=other: t.replace('José P', '1').replace('Zoë', other),
        f"identity '1' and '{other}' are one number",
      )
      for other in ('01', '1.0', '１')
    ),
    (
      lambda t: t.replace('José P', 'ann').replace('Zoë', 'ａnn'),
      "identity 'ann' and 'ａnn' look alike",
    ),
    (
      lambda t: t.replace('im/b.png', 'IM/b.PNG'),
      "'IM/b.PNG' is 'im/b.png' on the disk: the case differs",
    ),
    (lambda t: t.replace('im/b', 'C:\\im\\b'), r"path 'C:\\im\\b.png'"),
    (lambda t: t.replace('im/b', '..\\b'), r"path '..\\b.png'"),
    (lambda t: t.replace('Zoë', 'Zoë, Ann'), 'wrong number of fields: 4'),
    (lambda t: t.replace('Zoë', '"Zoë'), 'a line break within a field'),
    (lambda t: t.replace('camera', 'Path'), "two columns 'path'"),
    (lambda t: t.replace('path', 'file'), "the first line is 'file, identity"),
    (lambda t: t.encode('latin-1'), "not UTF-8: 'utf-8' codec can't decode"),
    (lambda t: t.replace('Zoë', 'Zoe').encode('utf-16-le'), 'UTF-16 without'),
    (lambda t: t.encode('utf-32'), 'or UTF-32'),
    (lambda t: t.splitlines()[0], 'manifest.csv has no rows below the header'),
    (lambda t: t.replace('im/b', f'{"b" * 300}/b'), '1 listed files are mis'),
    (lambda t: b'PK\3\4', 'a spreadsheet and no text'),
  ],
)
def test_causes_are_named(tmp_path, change, message):
  with pytest.raises(errors.DataError) as caught:
    rows(tmp_path, change(PLAIN))
  assert message in caught.value.line()


def test_numbers_of_any_length_are_told_apart(tmp_path):
  long = '1' * 40
  text = PLAIN.replace('José P', f'{long}2').replace('Zoë', f'{long}3')
  assert len(rows(tmp_path, text)) == 2


def test_case_is_of_one_domain(tmp_path):
  text = PLAIN.replace('camera', 'domain').replace('Zoë', 'josé p')
  assert len(rows(tmp_path, text)) == 2


def test_the_name_of_the_manifest_may_be_in_upper_case(tmp_path):
  rows(tmp_path, PLAIN)
  (tmp_path / 'manifest.csv').rename(tmp_path / 'Manifest.CSV')
  assert len(csv_manifest.rows(tmp_path, ('path',))) == 2


@pytest.mark.parametrize(
  'name, fix',
  [
    ('manifest.tsv', 'name it manifest.csv'),
    ('Manifest.csv.txt', 'name it manifest.csv'),
    ('manifest.xlsx', "save it as 'CSV UTF-8' with the name manifest.csv"),
  ],
)
def test_other_tables_are_named(tmp_path, name, fix):
  (tmp_path / name).touch()
  with pytest.raises(errors.DataError) as caught:
    csv_manifest.file_of(tmp_path)
  assert (caught.value.what, caught.value.fix) == (f'{name} is not read', fix)
