"""`python -m launchers.embed` is `fedreid embed`."""

from fedreid_jax.cli import program

if __name__ == '__main__':
  program.run('embed', 'python -m launchers.embed')
