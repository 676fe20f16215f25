"""Claims of FedReIDBench (P1, P2)."""

from fedreid_jax.apps.papers.claims.declare import (
  ROUTES,
  SIDE_SEEDS,
  Arm,
  Claim,
  Route,
  route,
)

CONFERENCE = 'FedReIDBench, ACM MM 2020'
JOURNAL = 'FedReIDBench, TOMM 2023'
FEDPAV = Arm('fedpav:trial')
# Nine clients, each tested on other persons of its training domain.
NINE = (Route('nine', ()),)
GLOBAL = Arm('fedpav:nine_trial')
OWN = Arm('fedpav:nine_trial', 'client')
CDW = Arm('fedpav_cdw:nine_trial', 'client')
ALONE = Arm('standalone:nine_trial', 'client')
LARGE = ('plaza', 'campus', 'station', 'park', 'market')
INFRARED = 'cameras=0,infrared=4'
# Six clients, each tested on other persons of its training domain: three
# domains of visible and three of infrared cameras, and six of visible cameras.
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


# Methods that the papers find near their baseline: source, published numbers,
# recipe. Numbers of the journal are increases of local models over training
# alone, means of the nine data sets in table 4.
NEAR = {
  'fedprox': (
    f'{JOURNAL}, table 4',
    'rank-1 over training alone +7.9 against +6.8',
    'fedprox:trial',
  ),
  'moon': (
    'L2RW, table 1',
    "mAP 29.54, 21.54, 32.34 against FedAvg's 29.98, 21.05, 33.52",
    'moon:trial',
  ),
  'scaffold': (
    'the paper of the method',
    'no figure for persons',
    'scaffold:trial',
  ),
  'fedatt': (
    'Wu and Gong, AAAI 2021, table 2',
    "rank-1 40.2, 61.3 against FedAvg's 41.0, 65.2",
    'fedatt:trial,data.labels=concat',
  ),
}


def _near(name: str, title: str) -> Claim:
  source, published, recipe = NEAR[name]
  return Claim(
    name,
    source,
    f'{title} is near FedPav.',
    published,
    Arm(recipe),
    FEDPAV,
    ROUTES,
    claimed='equal',
    margin=3.0,
    seeds=SIDE_SEEDS,
  )


CLAIMS = (
  Claim(
    'federation',
    'DFH, table 1',
    'The global model beats every single source on unseen domains.',
    'mAP 62.6, 25.4, 22.5 against 49.8, 23.3, 21.6 of the best source',
    FEDPAV,
    Arm('standalone:trial', 'best_client'),
    ROUTES,
    first=True,
  ),
  Claim(
    'local',
    f'{JOURNAL}, table 3',
    "Clients' own models beat the global one on their own domains.",
    'rank-1 66.5 against 59.9, means of nine data sets; better on all',
    OWN,
    GLOBAL,
    NINE,
    first=True,
  ),
  Claim(
    'local_or_alone',
    f'{CONFERENCE}, table 3',
    'With weights by cosine distance a client gains from federation: its own '
    'model beats training alone.',
    'rank-1 +11.3, mean of nine data sets; better on all',
    CDW,
    ALONE,
    NINE,
    first=True,
  ),
  Claim(
    'small_clients',
    f'{JOURNAL}, table 3',
    'Small clients gain more from federation than large ones.',
    'rank-1 over training alone +21.0 on four small data sets, -4.6 on five '
    'large ones',
    OWN,
    ALONE,
    NINE,
    minus=LARGE,
  ),
  Claim(
    'cdw',
    f'{JOURNAL}, table 4',
    'Weights by cosine distance beat weights by size.',
    'rank-1 over training alone +11.3 against +6.8, means of nine data sets',
    CDW,
    OWN,
    NINE,
  ),
  Claim(
    'upper_bound',
    f'{JOURNAL}, table 3',
    'Training on all images in one place is better than the global model.',
    'rank-1 76.9 against 59.9, means of nine data sets; better on all',
    Arm('centralised:nine_trial'),
    GLOBAL,
    NINE,
    seeds=SIDE_SEEDS,
  ),
  Claim(
    'kd',
    f'{JOURNAL}, section 5.2',
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
    f'{JOURNAL}, table 4',
    'Clusters help clients that form two groups.',
    'rank-1 over training alone +2.2 against -4.6 on five large data sets, '
    '+7.1 against +21.0 on four small ones',
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
    'mAP 47.39, 66.36 against 11.11, 36.57',
    Arm('fedpav:trial,data.client_split=by_identity'),
    Arm('fedpav:trial,data.client_split=by_camera'),
    DIVIDED,
  ),
  _near('fedprox', 'FedProx'),
  # Where every client takes as many steps, FedNova is FedPav: the nine clients
  # differ in their numbers of images.
  Claim(
    'fednova',
    f'{JOURNAL}, table 4',
    'FedNova is near FedPav where clients have different numbers of images.',
    'rank-1 over training alone +6.5 against +6.8',
    Arm('fednova:nine_trial', 'client'),
    OWN,
    NINE,
    claimed='equal',
    margin=3.0,
    seeds=SIDE_SEEDS,
  ),
  _near('moon', 'MOON'),
  _near('scaffold', 'SCAFFOLD'),
  _near('fedatt', 'FedATT'),
)
