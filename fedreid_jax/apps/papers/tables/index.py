"""All tables of the papers by their identifiers."""

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
  """Returns names and titles of the tables of the papers."""
  return [f'{table.id:<28} {table.title}' for table in TABLES.values()]
