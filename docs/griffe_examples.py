"""For mkdocstrings: our docstrings say `Example:`, and Griffe knows the section as `Examples:`."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Reads the one as the other, so that an example is shown as code and not as a quotation."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            value = obj.docstring.value
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", value, flags=re.M)
