"""Programs that choose a method by the platform for which they are lowered."""

from jax.extend import core


def fallback(equation: core.JaxprEqn) -> core.ClosedJaxpr | None:
  """Returns what `lax.platform_dependent` runs by default, None for others.

  The branch is that of all platforms without one of their own. Its inputs are
  those of the equation after the first, the index of the platform.
  """
  if equation.primitive.name != 'cond':
    return None
  params = equation.params
  platforms = params.get('branches_platforms')
  if not platforms:
    return None
  return params['branches'][platforms.index(None)]
