"""How values are shown in messages."""

from typing import Any

_LONGEST = 60


def shown(value: Any) -> str:
    """The value as Python writes it, cut where it is long."""
    written = repr(value)
    return written if len(written) <= _LONGEST else f"{written[: _LONGEST - 4]} ..."
