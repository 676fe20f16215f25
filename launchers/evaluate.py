"""`python -m launchers.evaluate` is `fedreid evaluate`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('evaluate', 'python -m launchers.evaluate')
