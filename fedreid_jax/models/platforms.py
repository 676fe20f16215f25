"""Programs that choose a method by the platform for which they are lowered."""

from jax.extend import core


def fallback(equation: core.JaxprEqn) -> core.ClosedJaxpr | None:
  """Returns the default branch of a `lax.platform_dependent`.

  The inputs of the branch are the inputs of the equation without the first, the
  index of the platform. The result is None for other equations.
  """
  # JAX lowers `platform_dependent` to a `cond` that names its platforms; an
  # ordinary `cond` does not. The default branch has the platform None.
  if equation.primitive.name != 'cond':
    return None
  params = equation.params
  platforms = params.get('branches_platforms')
  if not platforms:
    return None
  return params['branches'][platforms.index(None)]
