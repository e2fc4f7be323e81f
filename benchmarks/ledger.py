"""A file of JSON lines that a bench writes to and starts again from."""

import json
from pathlib import Path

from benchmarks.harness import provenance, record


class Ledger:
    """The rows measured so far; without a file they are forgotten when the process ends."""

    def __init__(self, path: Path | None):
        self.path = path
        self.rows: list[dict] = []
        if path is not None and path.is_file():
            # An interrupted run may have left half a line at the end.
            lines = path.read_text("utf-8").split("\n")[:-1]
            self.rows = [json.loads(line) for line in lines if line]

    def find(self, **wanted) -> list[dict]:
        """Rows with these values."""
        return [
            row for row in self.rows if all(row.get(name) == is_ for name, is_ in wanted.items())
        ]

    def add(self, **row) -> None:
        """Adds a row, provenance included, and writes it to the file at once."""
        self.rows.append(provenance() | row)
        record(self.path, row)
