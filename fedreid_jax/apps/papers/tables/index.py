"""The index of all tables and claims of the papers."""

from fedreid_jax.apps.papers.tables import (
  declare,
  dfh,
  feddg,
  fedreid,
  fedreidbench,
  fedreidbench_journal,
  l2rw,
  l2rw_plus,
  others,
  unseen,
)

PAPERS = (
  *(dfh, fedreidbench, fedreidbench_journal, l2rw, l2rw_plus, fedreid),
  *(feddg, others),
)
TABLES = {table.id: table for paper in PAPERS for table in paper.TABLES}
_CLAIMS: tuple[declare.Claim, ...] = (
  *(*dfh.CLAIMS, *fedreidbench.CLAIMS),
  *(*fedreid.CLAIMS, *l2rw.CLAIMS, *others.CLAIMS),
  *unseen.CLAIMS,
)
# The main claims first. Sorting is stable: within both parts the order of the
# papers remains.
CLAIMS = {
  claim.name: claim for claim in sorted(_CLAIMS, key=lambda c: not c.first)
}


def entries() -> list[str]:
  """A line with the name and the title of every table."""
  return [f'{table.id:<28} {table.title}' for table in TABLES.values()]
