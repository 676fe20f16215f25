"""`python -m launchers.serve` is `fedreid serve`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('serve', 'python -m launchers.serve')
