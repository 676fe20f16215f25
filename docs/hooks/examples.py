"""Extension of Griffe: examples in docstrings become blocks of code.

Griffe knows examples in a section of this name only, and the docstrings of the
package have them in the text.
"""

import re
from typing import Any

import griffe

# Lines from one that begins with `>>>` to the next empty line.
EXAMPLE = re.compile(r'^>>> .*(?:\n.+)*', re.MULTILINE)


class Examples(griffe.Extension):
  """Puts fences around the examples of every docstring."""

  def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
    """Changes the docstring of an object after it was read."""
    if obj.docstring:
      obj.docstring.value = EXAMPLE.sub(
        r'```pycon\n\g<0>\n```', obj.docstring.value
      )
