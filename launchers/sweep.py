"""`python -m launchers.sweep` is `fedreid sweep`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('sweep', 'python -m launchers.sweep')
