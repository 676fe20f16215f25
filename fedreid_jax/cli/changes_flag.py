"""The flag of the commands that change fields of a saved configuration."""

from absl import flags

CHANGES = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE; changes a field of the configuration.'
)
