"""`python -m launchers.study` is `fedreid study`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('study', 'python -m launchers.study')
