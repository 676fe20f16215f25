"""All tables of the papers by their identifiers."""

from fedreid_jax.config.tables import (
  dfh,
  fedreid,
  fedreidbench,
  fedreidbench_journal,
  l2rw,
)

PAPERS = (dfh, fedreidbench, fedreidbench_journal, l2rw, fedreid)
TABLES = {table.id: table for paper in PAPERS for table in paper.TABLES}
