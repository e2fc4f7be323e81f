"""JSON that somebody else wrote: whatever is wrong with it is one kind of error."""

import json
from typing import Any


def parsed(text: str | bytes) -> Any:
    """What `json.loads` makes of a text, which raises RecursionError for one of 100,000 brackets.

    Args:
        text: or its bytes, in UTF-8.

    Raises:
        json.JSONDecodeError: if it is no JSON, nested too deep to be read, in another encoding, or
            has an integer of thousands of digits.

    Example:
        >>> parsed('{"a": 1}')
        {'a': 1}
        >>> parsed("[" * 10**5)
        Traceback (most recent call last):
        json.decoder.JSONDecodeError: nested too deep to be read: line 1 column 1 (char 0)
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("nested too deep to be read", "", 0) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None
