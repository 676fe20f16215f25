"""`python -m launchers.visualize` is `fedreid visualize`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('visualize', 'python -m launchers.visualize')
