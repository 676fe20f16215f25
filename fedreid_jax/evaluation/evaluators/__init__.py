"""The evaluators, one per module: `evaluate(model, target) -> metrics`.

`evaluate` receives a `Model` and a `Target`, and its `Options` as a third
argument if the module declares them, like every plug-in (docs/extend.md). It
returns numbers by name, or `{}` for a target without them. `TASK` is the task
of the targets that the evaluator needs, as in `data.task`, by default
'retrieval'.

The evaluator with the name of a target's task always runs. The others run if
`evaluation.extra` lists them, and their `Options` are a group of the
configuration then. With an option `every` they run in some evaluations of a run
only (`options.Every`).
"""

import sys
from typing import Literal, TypeAlias

from fedreid_jax.core import plugins

EvaluatorName: TypeAlias = Literal[
  tuple(plugins.available(sys.modules[__name__]))  # pyright: ignore
]
