"""`python -m launchers.main` is `fedreid train`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('train', 'python -m launchers.main')
