"""A file of JSON lines that a bench writes to and starts again from."""

import hashlib
import json
from pathlib import Path
from typing import Any

from benchmarks.harness import invocation, provenance, record


class Ledger:
    """The rows measured so far; without a file they are forgotten when the process ends.

    Args:
        path: the file. One that an interrupted run left is gone on with.
        setting: what all rows of this run have in common. It is written once, with the command, the
            device and the date, in a line that the rows name. Rows of other settings may stand in
            the same file; they are not found. None: each row holds all by itself.
    """

    def __init__(self, path: Path | None, setting: dict[str, Any] | None = None):
        self.path = path
        self.run: str | None = None
        self.rows: list[dict] = []
        if path is not None and path.is_file():
            _drop_half_a_line(path)
            self.rows = read(path)
        if setting is not None:
            text = json.dumps(setting, sort_keys=True)
            self.run = hashlib.sha256(text.encode()).hexdigest()[:8]
            self.rows = [row for row in self.rows if row.get("run") == self.run]
            if not self.rows:
                record(path, {"run": self.run, "setting": setting | {"command": invocation()}})

    def find(self, **wanted) -> list[dict]:
        """Rows with these values."""
        return [
            row for row in self.rows if all(row.get(name) == is_ for name, is_ in wanted.items())
        ]

    def add(self, **row) -> None:
        """Adds a row and writes it to the file at once."""
        if self.run is None:
            self.rows.append(provenance() | row)
            record(self.path, row)
        else:
            row = {"run": self.run} | row
            self.rows.append(row)
            record(self.path, row, dated=False)


def read(path: Path) -> list[dict]:
    """The rows of a file, each with the values of its setting."""
    settings: dict[str, dict] = {}
    rows = []
    for line in path.read_text("utf-8").split("\n")[:-1]:
        row = json.loads(line) if line else {}
        if "setting" in row:
            dated = {name: value for name, value in row.items() if name not in ("run", "setting")}
            settings[row["run"]] = dated | row["setting"]
        elif row:
            rows.append(settings.get(row.get("run", ""), {}) | row)
    return rows


def _drop_half_a_line(path: Path) -> None:
    """Takes away what an interrupted run left behind the last whole line."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        path.write_bytes(whole)
