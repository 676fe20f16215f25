"""`python -m launchers.data` is `fedreid data`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('data', 'python -m launchers.data')
