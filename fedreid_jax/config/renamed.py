"""Names of the first edition and their present names.

The use of a renamed field, value, component, preset or table is an error whose
message has the new name, or both new names of a preset that was divided. A
saved run with such a field is refused.
"""

from collections.abc import Mapping
from typing import Any

FIELDS: Mapping[str, str] = {
  'bn_buffers': 'batch_stats_rule',
  'data.world': 'data.source',
  'data.scenario': 'data.client_split',
  'data.infrared_shared': 'data.brightness_correlation',
  'model.private': 'model.modality_specific_stages',
  'local.survey_batch': 'local.data_pass_batch',
  'optim.ramp': 'optim.schedule_per_step',
  'augment.gray': 'augment.grey',
  'evaluation.both_sides': 'evaluation.report_both_neck_features',
  'cc.images': 'client_clustering.images',
  'cc.represent': 'client_clustering.represent',
  'expert.temperature': 'local_expert.temperature',
  'expert.frozen': 'local_expert.frozen',
  'noise.buffers': 'noise.batch_stats',
}
REMOVED: Mapping[str, str] = {
  'execution.reduction': 'uploads are added wherever sums suffice',
  'model.variant': 'the component that changes the network is listed in '
  "components, as 'agw'",
}
VALUES: Mapping[str, Mapping[str, str]] = {
  'data.client_split': {
    'ci': 'camera_independent',
    'ei': 'entity_independent',
    'es': 'entity_shared',
  },
  'augment.channel_kinds': {'gray': 'grey'},
  'augment.copies': {'gray': 'grey'},
  'cdw.batch': {'shared': 'public'},
}
COMPONENTS: Mapping[str, str] = {
  'cc': 'client_clustering',
  'expert': 'local_expert',
}
PRESETS: Mapping[str, str] = {
  'folder': 'photos for photographs of your own, or omniglot',
}
TABLES: Mapping[str, str] = {
  'p0': 'dfh',
  'p1': 'fedreidbench',
  'p2': 'fedreidbench_journal',
  'p3': 'l2rw',
  'p4': 'fedreid',
}


def value(field: str, old: Any) -> str | None:
  """Returns the present name of a field's value, or None."""
  if field == 'components' and isinstance(old, tuple):
    new = (COMPONENTS.get(one) for one in old if isinstance(one, str))
    return next(filter(None, new), None)
  return VALUES.get(field, {}).get(old) if isinstance(old, str) else None


def field(name: str) -> str | None:
  """The present name of a field, by its full name or its last part, or None."""
  last = {old.rpartition('.')[2]: new for old, new in FIELDS.items()}
  return FIELDS.get(name) or COMPONENTS.get(name) or last.get(name)


def table(name: str) -> str | None:
  """Returns the present id of a table, or None."""
  paper, slash, rest = name.partition('/')
  return f'{TABLES[paper]}{slash}{rest}' if paper in TABLES else None
