"""The published audits and the tables of their page."""

from benchmarks import published_audits


def test_the_page_has_the_published_audits(tmp_path):
  published_audits.unpack(tmp_path)
  names = {(x.run, x.name) for x in published_audits.AUDITS}
  assert len(names) == len(published_audits.AUDITS)
  found = {(path.parent.name, path.stem) for path in tmp_path.glob('*/*.json')}
  files = {
    (run, x) for run in published_audits.RUNS for x in ('config', 'results')
  }
  assert found == names | files
  page = (published_audits.RESULTS / 'privacy.md').read_text()
  for row in published_audits.tables(tmp_path).splitlines():
    assert row in page
