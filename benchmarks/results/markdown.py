"""Tables as Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Makes a table, or says that nothing is counted yet; None is an empty cell.

    Raises:
        ValueError: if a row has more or fewer cells than the header.
    """
    lines = [list(header), ["---"] * len(header)]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells under {len(header)} heads: {row}")
        lines.append(["" if cell is None else str(cell) for cell in row])
    if len(lines) == 2:
        return "*Not counted yet.*"
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measured(rows: Iterable[dict], what: str) -> str:
    """Makes a line below a table, about what was counted, the device and the day.

    Args:
        rows: of the table, with `device`, `jax` and `date`.
        what: how many texts, and of which setting.

    Example:
        >>> measured([{"device": "cpu", "jax": "0.10", "date": "2026-11-25"}], "20 texts")
        '20 texts; cpu, JAX 0.10, 2026-11-25.'
    """
    said = {f"{row['device']}, JAX {row['jax']}, {row['date']}" for row in rows}
    return f"{what}; {'; '.join(sorted(said))}."
