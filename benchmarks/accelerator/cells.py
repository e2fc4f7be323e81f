"""Measurements one by one: what is in the file is skipped, what fails is a row that says so."""

import gc
import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, console
from benchmarks.ledger import Ledger

BEGUN = "begun"
"""The key of a row that is written before a measurement, in case it ends the process."""
MOST_TRIES = 3
"""The number of times that a measurement may end the process before it is left out."""
STOPPED = "stopped"
"""The key of a row that is written after a process was ended since its time was up."""


def fingerprint() -> str:
    """A digest of the library's sources, so that rows of other code are told apart without git."""
    digest = hashlib.sha256()
    for folder in ("jspec", "models"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if not name.startswith("jspec/models/"):  # a link to the other folder
                digest.update(name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def mend(rows: Path) -> None:
    """Removes the half line that a process may have left when it was ended."""
    if rows.is_file() and not (text := rows.read_bytes()).endswith(b"\n"):
        rows.write_bytes(text[: text.rfind(b"\n") + 1])


def note_stop(rows: Path) -> None:
    """Notes that the process which wrote the last rows was ended since its time was up."""
    mend(rows)
    if rows.is_file():
        with rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps({STOPPED: True}) + "\n")


@dataclass
class Cells:
    """The measurements of one section, each of which ends as one row of the ledger.

    Args:
        ledger: where rows are read and written.
        about: what all rows have in common; only rows that have it too count as measured.
        ends: the time, as of `time.monotonic`, after which nothing is begun.
    """

    ledger: Ledger
    about: Mapping[str, Any]
    ends: float
    left: list[str] = field(default_factory=list)
    """What there was no time for."""
    skipped: list[str] = field(default_factory=list)
    """Sentences about what cannot be measured here."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=2))
    """Seconds of the last measurements: the next is not begun with fewer left."""

    def find(self, **key: Any) -> list[dict]:
        """Rows that were measured, of this section or, if `section` is named, of another."""
        return [row for row in self.ledger.find(**{**self.about, **key}) if BEGUN not in row]

    def run(self, measure: Callable[[], dict[str, Any]], **key: Any) -> None:
        """Measures one cell, unless that was done before or there is no time left.

        Args:
            measure: returns what is to stand in the row.
            key: the cell's own names and sizes.
        """
        name = ", ".join(str(value) for value in key.values())
        if self.find(**key):
            return
        if time.monotonic() + max(self.recent, default=0.0) > self.ends:
            self.left.append(name)
            return
        if self._failures(key) >= MOST_TRIES:
            self.ledger.add(**self.about, **key, error=f"it ended the process {MOST_TRIES} times")
            return
        self.ledger.add(**self.about, **key, **{BEGUN: True})
        begin = time.monotonic()
        try:
            row = measure()
        except Exception as error:  # an accelerator fails in ways of its own; the others go on
            row = {"error": f"{type(error).__name__}: {first_line(error)}"}
        took = time.monotonic() - begin
        self.recent.append(took)
        self.ledger.add(**self.about, **key, **row, took=round(took, 2))
        console.print(f"{self.about['section']}: {name}: {row.get('error', f'{took:.1f} s')}")
        gc.collect()  # the arrays of a cell that failed hang on its traceback

    def _failures(self, key: Mapping[str, Any]) -> int:
        """How often a process ended in this measurement by itself, and not since time was up."""
        begun = {**self.about, **key, BEGUN: True}.items()
        rows = [*self.ledger.rows, {}]
        return sum(
            begun <= row.items() and STOPPED not in after
            for row, after in pairwise(rows)
            if BEGUN in row
        )

    def skip(self, sentence: str) -> None:
        """Notes what cannot be measured here, and why; another run tries again."""
        self.skipped.append(sentence)
        console.print(f"{self.about['section']}: skipped: {sentence}")


def first_line(error: BaseException) -> str:
    """The beginning of what an error says."""
    return (str(error).strip().splitlines() or [""])[0][:300]
