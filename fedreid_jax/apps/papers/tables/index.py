"""The index of all tables of the papers, by identifier."""

from fedreid_jax.apps.papers.tables import (
  dfh,
  fedreid,
  fedreidbench,
  fedreidbench_journal,
  l2rw,
)

PAPERS = (dfh, fedreidbench, fedreidbench_journal, l2rw, fedreid)
TABLES = {table.id: table for paper in PAPERS for table in paper.TABLES}


def entries() -> list[str]:
  """Returns a line with the name and the title of every table."""
  return [f'{table.id:<28} {table.title}' for table in TABLES.values()]
