"""An extension for Griffe, which reads our section `Example:` as `Examples:`."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Reads the one as the other, so that an example is shown as code and not as a quotation."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Renames the section in each module, class, function and attribute."""
        if obj.docstring is not None:
            value = obj.docstring.value
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", value, flags=re.M)
