"""A file of JSON lines that a bench writes to and starts again from."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import invocation, provenance
from jspec.cli.bench import ledger
from jspec.cli.bench.ledger import Row


class Ledger(ledger.Ledger):
    """The rows measured so far; without a file they are forgotten when the process ends.

    Args:
        path: the file. One that an interrupted run left is gone on with.
        setting: what all rows of this run have in common. It is written once, with the command, the
            device and the date, in a line that the rows name. Rows of other settings may be in the
            same file; they are not found. None: each row holds all by itself.
    """

    def __init__(self, path: Path | None, setting: dict[str, Any] | None = None):
        super().__init__(path)
        self.run: str | None = None
        self.rows = with_settings(self.rows)
        if setting is not None:
            text = json.dumps(setting, sort_keys=True)
            self.run = hashlib.sha256(text.encode()).hexdigest()[:8]
            self.rows = self.find(run=self.run)
            if not self.rows:
                command = setting | {"command": invocation()}
                self.write([provenance() | {"run": self.run, "setting": command}])

    def add(self, **row: Any) -> None:
        """Adds a row and writes it to the file at once."""
        self.extend([provenance() | row if self.run is None else {"run": self.run} | row])


def read(path: Path) -> list[Row]:
    """Returns the rows of a file, each with the values of its setting."""
    return with_settings(ledger.parse(path.read_bytes(), path))


def with_settings(lines: Sequence[Row]) -> list[Row]:
    """Returns rows with the values of the settings that they name."""
    settings: dict[str, Row] = {}
    rows = []
    for row in lines:
        if "setting" in row:
            dated = {name: value for name, value in row.items() if name not in ("run", "setting")}
            settings[row["run"]] = dated | row["setting"]
        else:
            rows.append(settings.get(row.get("run", ""), {}) | row)
    return rows
