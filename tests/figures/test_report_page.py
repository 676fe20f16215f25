"""The page of `fedreid report`, from the files of toy runs."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import toy_run

from fedreid_jax.figures import curves, html_page, report_page
from fedreid_jax.training.files import run_files

FEATURES = {'dfh.lam': 2.0, 'name': '<b>toy</b>'}


def entry(kind, mAP, chosen_on=''):
  return {
    **{'target': 'target', 'model': 'global', 'kind': kind},
    **{'rounds': [1], 'chosen_on': chosen_on, 'metrics': {'mAP': mAP}},
  }


@pytest.fixture(scope='module')
def run():
  return toy_run.toy_run()


def written(run, seed, mAP):
  """What a run of two rounds has written; its clients are ash and birch."""
  config = replace(run.config, seed=seed)
  queries = len(run.federation.targets[0].trials[0].query)
  clients = {'ash': {'loss': 1.0}, 'birch': {'loss': 3.0}}
  rounds = [
    {'round': k, 'event': 'train', 'loss': 4.0 / k, 'by_client': clients}
    for k in (1, 2)
  ]
  evaluation = [
    {'round': k, **{n: entry('last', mAP)[n] for n in ('target', 'model')}}
    | {'metrics': {'mAP': mAP}}
    for k in (0, 2)
  ]
  return run_files.Recorded(
    Path(f'/runs/{seed}'),
    config,
    {
      **{'method': 'fedpav+dfh', 'rounds': 2, 'evaluation': evaluation},
      'summary': [entry('last', mAP), entry('best', mAP, 'targets')],
      'seconds': {'total': 10.0 + seed},
      'communication': {
        'up': {'model': 2_000_000, 'dfh': 500_000},
        'down': {'model': 1_000_000},
      },
    },
    {
      **{'command': ['fedreid', '<script>'], 'commit': 'abc', 'devices': []},
      **{'versions': {'jax': '1'}, 'data_digest': 'plaza,campus,station,48'},
      'clients': [{'client': 'ash', 'images': 12}],
    },
    rounds,
    {'global/target/0': np.linspace(0, 1, queries, dtype=np.float32)},
  )


@pytest.fixture(scope='module')
def html(run):
  own = report_page.Labelled(
    'toy', [written(run, 0, 40.0), written(run, 1, 44.0)], FEATURES, lambda: run
  )
  return report_page.page([own])


def test_the_digest_of_words_is_a_digest(html):
  assert 'plaza,cam' not in html
  found = re.search(
    'data digest.{0,40}([0-9a-f]{16}) .SHA-256', html, re.DOTALL
  )
  words = b'plaza,campus,station,48'
  assert found and hashlib.sha256(words).hexdigest().startswith(found[1])


@pytest.mark.parametrize('files', [1, 4, 5])
def test_the_digest_of_files_is_that_of_the_run(files):
  digest = ':'.join('0123456789abcdef' for _ in range(files))
  shown = report_page._digest(digest)
  assert digest.startswith(shown.rstrip('…'))
  assert shown.endswith('…') == (files > 4)


def test_the_page_has_every_section_and_says_the_numbers(html):
  anchors = re.findall(r'<h2 id="(\w+)">', html)
  links = re.findall(r'<a href="#(\w+)">', html)
  assert anchors == links and len(anchors) == 9
  assert '42.0 ± 2.8' in html  # mean and sample deviation of 40 and 44
  assert '10.5 ± 0.7' in html and '<td>0.500 ± 0.000</td>' in html
  assert 'best, on targets' in html and 'dfh.lam = 2.0' in html
  low, high = re.search(r'<td>([\d.]+) to ([\d.]+)</td>', html).groups()
  assert 0 < float(low) < 50 < float(high) < 100


def test_it_needs_no_other_file_and_hides_no_html(html):
  assert "default-src 'none'" in html and '<script' not in html
  assert '&lt;script&gt;' in html and '<b>toy</b>' not in html
  sources = re.findall(r'src="([^"]{0,30})', html)
  assert len(sources) >= 6
  assert all(one.startswith('data:image/png;base64,') for one in sources)
  assert html.count('alt="') == len(sources)
  assert 'worst queries of target, average precision 0, ' in html


def test_metrics_of_clients_by_round():
  rounds = [
    {'round': 1, 'loss': 2.0, 'by_client': {'b': {'loss': 3.0}, 'a': {}}},
    {'round': 2, 'loss': 1.0, 'by_client': {'a': {'loss': 1.5}}},
    {'round': 3, 'loss': 0.5},  # of an earlier version
  ]
  found = curves.of_clients(rounds, 'loss')
  assert found == {'a': {2: 1.5}, 'b': {1: 3.0}} and list(found) == ['a', 'b']
  assert curves.of_clients(rounds, 'accuracy') == {}


def test_text_of_a_page_is_escaped_and_keeps_its_lines():
  assert html_page.text('a<b\n"c"') == 'a&lt;b &quot;c&quot;'
  assert '>a\n&amp;b<' in html_page.text_block('a\n&b')


def test_words_between_backticks_are_code():
  assert html_page.prose('run `a <b>` first') == (
    'run <code>a &lt;b&gt;</code> first'
  )
  assert html_page.prose('a`b') == 'a`b'
  assert '<dd><code>x</code></dd>' in html_page.facts([('name', '`x`')])


def test_no_text_has_backticks_and_no_picture_a_smallest_width(html):
  body = html.partition('<body>')[2]
  assert '<code>fedreid audit</code>' in body
  assert '`' not in re.sub('<(pre|img).*?(</pre>|>)', '', body, flags=re.DOTALL)
  assert 'min-width' not in body
