"""The published audits and the tables of their page."""

from benchmarks import judge_published, published_audits


def test_the_page_has_the_published_audits(tmp_path):
  judge_published.unpack(published_audits.NAME, tmp_path)
  names = {(x.run, x.name) for x in published_audits.AUDITS}
  assert len(names) == len(published_audits.AUDITS)
  found = {(path.parent.name, path.stem) for path in tmp_path.glob('*/*.json')}
  files = {
    (run, x) for run in published_audits.RUNS for x in ('config', 'results')
  }
  assert found == names | files
  page = (judge_published.RESULTS / 'privacy.md').read_text()
  for row in published_audits.tables(tmp_path).splitlines():
    assert row in page
