"""The flag `--set` of commands that read the configuration of a run."""

from absl import flags

CHANGES = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE; changes a field of the configuration.'
)
