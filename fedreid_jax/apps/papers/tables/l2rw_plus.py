"""The tables of L2RW+: tracklets, with every camera a client (CI).

  fedreid table --table=l2rw_plus/vcm --preset=paper --root=DIR

H is HITSZ-VCM, and B is BUPTCampus. A model is tested on the data set whose
cameras trained it, and on the other one (H -> B, B -> H). Queries are infrared
tracklets, and the gallery has visible ones.

Jiang et al., "L2RW+: a comprehensive benchmark towards privacy-preserved
visible-infrared person re-identification" (arXiv 2503.12232, version 2). The
rows are those of table 1 of L2RW; the numbers of the second version are not
known here, so that no row has any.
"""

from fedreid_jax.apps.papers.tables.declare import ALL, Row, Table

# Data sets and presets of the recipe, frames of a tracklet in a test, and
# synthetic stand-ins.
DATA = {
  'H': ('hitsz-vcm:frames=6', 'plaza:cameras=4,infrared=2'),
  'B': ('buptcampus:frames=10', 'campus:cameras=2,infrared=2'),
}
SERVERS = ('FedProx', 'FedNova', 'Moon', 'FedAvg')
# Shots of a person by a camera are the frames of a tracklet.
SYNTHETIC = (
  *('data.tracklet=4', 'data.shots=4', 'data.target_shots=4'),
  *('local.frames=4', 'local.batch=32', 'local.identities=8'),
)


def _row(server: str, local: str, trained: str) -> Row:
  """A row, tested on the data set of its clients and on the other one."""
  order = sorted(DATA, key=lambda name: name != trained)
  papers, synthetic = zip(*(DATA[name] for name in order), strict=True)
  names = {'base': server, 'ca': f'{server}+CA', 'dppt': f'{server}+DPPT'}
  return Row(
    names[local],
    f'configs/dppt.py:server={server.lower()},local={local}',
    {
      ALL: ('data.allow_overlap=True',),
      'paper': (f'data.targets={papers!r}',),
      'synthetic': (
        f'data.sources={synthetic[:1]!r}',
        f'data.targets={synthetic!r}',
        *SYNTHETIC,
      ),
    },
    {name.partition(':')[0]: {} for name in papers},
  )


def _table(name: str, trained: str, title: str) -> Table:
  return Table(
    f'l2rw_plus/{name}',
    f'camera independence on tracklets: {title}, tested on both data sets',
    [
      _row(server, local, trained)
      for server in SERVERS
      for local in ('base', 'ca', 'dppt')
    ],
    presets={'paper': name},
    note='No published numbers are at hand. Weights of the mean are numbers of '
    'frames. The synthetic stand-ins have cameras of one modality each, while '
    'the cameras of both data sets have both; a tracklet is four shots of a '
    'person by a camera. Clients of FedNova reset their momentum at the start '
    'of a round, as its weights require.',
  )


TABLES = (
  _table('vcm', 'H', 'HITSZ-VCM'),
  _table('bupt', 'B', 'BUPTCampus'),
)
