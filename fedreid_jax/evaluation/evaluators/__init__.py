"""The evaluators, one per module: `evaluate(model, target) -> metrics`.

`evaluate` receives a `Model` and a `Target`, and its `Options` as a third
argument if the module declares them, like every plug-in (docs/plugins.md). It
returns numbers by name, `{}` if the target has none. `TASK` is the kind of
target that it needs, as in `data.task`; without it, the target is of retrieval.

The evaluator with the name of a target's task always runs, and the others run
if `evaluation.extra` lists them.
"""

import sys
from typing import Literal, TypeAlias

from fedreid_jax.core import plugins

EvaluatorName: TypeAlias = Literal[
  tuple(plugins.available(sys.modules[__name__]))  # pyright: ignore
]
