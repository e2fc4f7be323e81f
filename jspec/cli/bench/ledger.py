"""A file of JSON lines that a bench writes to as it measures, and goes on from."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jspec._validate import plain_json
from jspec._validate.errors import InputError
from jspec._validate.whole_files import writing

Row = dict[str, Any]


class Ledger:
    """The rows that were measured so far, in memory and on disk."""

    def __init__(self, path: Path | None):
        self.path = path
        self.rows: list[Row] = [] if path is None else _resume(path)

    def extend(self, rows: Sequence[Row]) -> None:
        """Adds rows and has them on disk when it returns."""
        self.write(rows)
        self.rows += rows

    def write(self, rows: Sequence[Row]) -> None:
        """Writes rows to the file, and keeps none of them."""
        if self.path is None:
            return
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())

    def find(self, **values: Any) -> list[Row]:
        """Returns the rows with these values."""
        return [
            row for row in self.rows if all(row.get(name) == is_ for name, is_ in values.items())
        ]


def _resume(path: Path) -> list[Row]:
    """Returns the rows of a file, which ends with a whole line afterwards."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); name a folder that can"
        ) from error
    # A run that was killed while it wrote may have left half a row.
    lines = content[: content.rfind(b"\n") + 1]
    rows = parse(lines, path)
    if len(lines) < len(content):
        os.truncate(path, len(lines))
    return rows


def parse(content: bytes, path: Path) -> list[Row]:
    """Returns the rows of a file's lines."""
    return [
        _row(line, f"line {number} of {path}")
        for number, line in enumerate(content.split(b"\n"), 1)
        if line.strip()
    ]


def _row(line: bytes, source: str) -> Row:
    try:
        row = plain_json.parse(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise InputError(
            f"{source} is not a row of a bench; mend or remove that line, or name another folder"
        )
    return row
