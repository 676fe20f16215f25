"""`python -m launchers.table` is `fedreid table`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('table', 'python -m launchers.table')
