"""Claims of FedReIDBench (P1, P2)."""

from fedreid_jax.config.claims.declare import ROUTES, Arm, Claim, Route

CONFERENCE = 'FedReIDBench, ACM MM 2020'
JOURNAL = 'FedReIDBench, TOMM 2023'
FEDPAV = Arm('fedpav:trial')
# Nine clients, each tested on other persons of its own domain.
NINE = (Route('nine', ()),)
OWN = Arm('fedpav:nine_trial', 'client')
ALONE = Arm('standalone:nine_trial', 'client')
SMALL = ('harbour', 'alley', 'arcade', 'bridge')
LARGE = ('plaza', 'campus', 'station', 'park', 'market')


def _near(name: str, recipe: str, text: str) -> Claim:
  return Claim(
    name,
    f'{CONFERENCE} and the papers of the methods',
    text,
    'no figure for persons',
    Arm(recipe),
    FEDPAV,
    ROUTES,
    claimed='equal',
    margin=3.0,
  )


CLAIMS = (
  Claim(
    'federation',
    f'{CONFERENCE}, section 4.2',
    'The global model beats every single source on unseen domains.',
    'on unseen data sets, a figure',
    FEDPAV,
    Arm('standalone:trial', 'best_client'),
    ROUTES,
    first=True,
  ),
  Claim(
    'local',
    f'{CONFERENCE}, section 4.2',
    "Clients' own models beat the global one on their own domains.",
    'on all nine data sets, a figure',
    OWN,
    Arm('fedpav:nine_trial'),
    NINE,
    first=True,
  ),
  Claim(
    'local_or_alone',
    f'{CONFERENCE}, section 4.2',
    'Federation helps every client: its own model beats training alone.',
    'on eight of nine data sets',
    OWN,
    ALONE,
    NINE,
    first=True,
  ),
  Claim(
    'small_clients',
    f'{CONFERENCE}, section 4.2',
    'Small clients gain more from federation than large ones.',
    'a figure',
    OWN,
    ALONE,
    NINE,
    minus=LARGE,
  ),
  Claim(
    'cdw',
    f'{CONFERENCE}, table 5',
    'Weights by cosine distance beat weights by size.',
    'a figure and a table',
    Arm('fedpav_cdw:nine_trial', 'client'),
    OWN,
    NINE,
  ),
  Claim(
    'kd',
    f'{CONFERENCE}, section 5.2',
    'Distillation to the server improves the global model.',
    'a figure',
    Arm('fedpav_kd:trial'),
    FEDPAV,
    ROUTES,
  ),
  Claim(
    'kd_cdw',
    f'{CONFERENCE}, section 5.3',
    'Both together improve the global model.',
    'a figure',
    Arm('fedpav_kd_cdw:trial'),
    FEDPAV,
    ROUTES,
  ),
  _near('fedprox', 'fedprox:trial', 'FedProx is near FedPav.'),
  _near('fednova', 'fednova:trial', 'FedNova is near FedPav.'),
  _near('moon', 'moon:trial', 'MOON is near FedPav.'),
  _near('scaffold', 'scaffold:trial', 'SCAFFOLD is near FedPav.'),
  _near('fedatt', 'fedatt:trial,data.labels=concat', 'FedATT is near FedPav.'),
)
