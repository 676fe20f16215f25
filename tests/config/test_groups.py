"""Fields come from the modules that use them; no backend is started."""

import subprocess
import sys


def test_the_check_of_every_recipe_starts_no_backend():
  script = """
from fedreid_jax.config import recipes, reference, validation
for name in recipes.names():
  validation.validate(recipes.recipe(name, 'smoke'))
reference.markdown()
from jax._src import xla_bridge
print([*xla_bridge._backends])
"""
  done = subprocess.run(
    [sys.executable, '-c', script], capture_output=True, text=True, timeout=120
  )
  assert (done.stdout, done.stderr) == ('[]\n', '')
