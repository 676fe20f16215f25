"""Packages that only the local page needs."""

from fedreid_jax.core import extras


def check() -> None:
  """Refuses to go on without the packages of the server.

  Raises:
    ConfigError: naming the one that is missing, and the extra.
  """
  for name in ('starlette', 'uvicorn'):
    extras.load(name, 'serve', extras.command('serve'))
