"""`python -m launchers.report` is `fedreid report`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('report', 'python -m launchers.report')
