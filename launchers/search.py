"""`python -m launchers.search` is `fedreid search`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('search', 'python -m launchers.search')
