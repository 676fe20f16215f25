"""The flag `--checkpoint` of commands that read the models of a run."""

from absl import flags

CHECKPOINT = flags.DEFINE_string(
  'checkpoint',
  'latest',
  "Checkpoint: 'latest', 'best' or the number of a step.",
)
