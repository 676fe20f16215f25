"""The claims of all papers by name, the most important ones first."""

from fedreid_jax.apps.papers.claims import dfh, fedreid, fedreidbench, l2rw
from fedreid_jax.apps.papers.claims.declare import Claim

_ALL = (*dfh.CLAIMS, *fedreidbench.CLAIMS, *fedreid.CLAIMS, *l2rw.CLAIMS)
# Sorting is stable: within both parts the order of the papers remains.
CLAIMS: dict[str, Claim] = {
  claim.name: claim for claim in sorted(_ALL, key=lambda c: not c.first)
}
