"""`python -m launchers.invert` is `fedreid invert`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('invert', 'python -m launchers.invert')
