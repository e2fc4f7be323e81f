"""JSON that somebody else wrote: whatever is wrong with it is one kind of error."""

import json
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")


def with_text_alone(value: Any) -> Any:
    r"""Returns the value with U+FFFD for each half of a UTF-16 pair, in all of its texts."""
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {with_text_alone(key): with_text_alone(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(with_text_alone, value))
    return value


def parse(text: str | bytes) -> Any:
    """Returns what `json.loads` makes of a text, which raises RecursionError for one of 100,000
    brackets, with U+FFFD for halves of UTF-16 pairs.
    """
    try:
        value = json.loads(with_text_alone(text))
        escaped = _ESCAPED.search(text if isinstance(text, str) else text.decode("utf-8"))
        return with_text_alone(value) if escaped else value
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("nested too deep to be read", "", 0) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None
