"""The flag of the commands that read a checkpoint of a run."""

from absl import flags

CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  'latest',
  "Checkpoint: 'latest', 'best' or the number of a step.",
)
