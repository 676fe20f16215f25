"""Claims of FedReIDBench (P1, P2)."""

from fedreid_jax.config.claims.declare import ROUTES, Arm, Claim, Route, route

CONFERENCE = 'FedReIDBench, ACM MM 2020'
JOURNAL = 'FedReIDBench, TOMM 2023'
FEDPAV = Arm('fedpav:trial')
# Nine clients, each tested on other persons of its own domain.
NINE = (Route('nine', ()),)
OWN = Arm('fedpav:nine_trial', 'client')
ALONE = Arm('standalone:nine_trial', 'client')
LARGE = ('plaza', 'campus', 'station', 'park', 'market')
INFRARED = 'cameras=0,infrared=4'
# Six clients, each tested on other persons of its own domain: three domains of
# visible and three of infrared cameras, and six of visible ones.
GROUPS = (
  f'plaza campus station mall:{INFRARED} park:{INFRARED} market:{INFRARED}'
)
ALIKE = 'plaza campus station mall park market'
OVERLAP = 'data.allow_overlap=True'
# One domain is divided among four clients.
DIVIDED = tuple(
  route(source, targets, 'data.num_clients=4')
  for source, targets in (
    ('plaza', 'mall park market'),
    ('campus', 'harbour alley arcade'),
    ('station', 'mall harbour garden'),
  )
)


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
  Claim(
    'groups',
    f'{JOURNAL}, section 5.1',
    'Clusters help clients that form two groups.',
    'a figure, local models of nine data sets',
    Arm('fedpav_cc:nine_trial', 'client'),
    OWN,
    (route(GROUPS, GROUPS, OVERLAP),),
  ),
  Claim(
    'no_groups',
    f'{JOURNAL}, section 5.1',
    'Clusters do not harm clients that form no groups.',
    'no figure',
    Arm('fedpav_cc:nine_trial', 'client'),
    OWN,
    (route(ALIKE, ALIKE, OVERLAP),),
    claimed='equal',
    margin=3.0,
  ),
  Claim(
    'by_camera',
    f'{JOURNAL}, table 2',
    'Clients by identity are better than clients by camera.',
    'by camera is worst on all data sets',
    Arm('fedpav:trial,data.client_split=by_identity'),
    Arm('fedpav:trial,data.client_split=by_camera'),
    DIVIDED,
  ),
  _near('fedprox', 'fedprox:trial', 'FedProx is near FedPav.'),
  _near('fednova', 'fednova:trial', 'FedNova is near FedPav.'),
  _near('moon', 'moon:trial', 'MOON is near FedPav.'),
  _near('scaffold', 'scaffold:trial', 'SCAFFOLD is near FedPav.'),
  _near('fedatt', 'fedatt:trial,data.labels=concat', 'FedATT is near FedPav.'),
)
