"""Measurements one by one: what is in the file is skipped, what fails is a row that says so."""

import gc
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import ROOT, console
from benchmarks.ledger import Ledger

BEGUN = "begun"
"""The key of a row that is written before a measurement, in case it ends the process."""
MOST_TRIES = 3
"""The number of times that a measurement may end the process before it is left out."""


def fingerprint() -> str:
    """A digest of the library's sources, so that rows of other code are told apart without git."""
    digest = hashlib.sha256()
    for folder in ("jspec", "models"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            if not name.startswith("jspec/models/"):  # a link to the other folder
                digest.update(name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


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
    last: float = 0.0
    """Seconds of the last measurement: the next is not begun with fewer left."""

    def find(self, **key: Any) -> list[dict]:
        """Returns the rows that were measured."""
        return [row for row in self.ledger.find(**self.about, **key) if BEGUN not in row]

    def run(self, measure: Callable[[], dict[str, Any]], **key: Any) -> None:
        """Measures one cell, unless that was done before or there is no time left.

        Args:
            measure: returns the values of the row.
            key: the cell's own names and sizes.
        """
        name = ", ".join(str(value) for value in key.values())
        if self.find(**key):
            return
        if time.monotonic() + self.last > self.ends:
            self.left.append(name)
            return
        if len(self.ledger.find(**self.about, **key, **{BEGUN: True})) >= MOST_TRIES:
            self.ledger.add(**self.about, **key, error=f"it ended the process {MOST_TRIES} times")
            return
        self.ledger.add(**self.about, **key, **{BEGUN: True})
        begin = time.monotonic()
        try:
            row = measure()
        except Exception as error:  # an accelerator fails in ways of its own; the others go on
            row = {"error": f"{type(error).__name__}: {first_line(error)}"}
        self.last = time.monotonic() - begin
        self.ledger.add(**self.about, **key, **row, took=round(self.last, 2))
        console.print(f"{self.about['section']}: {name}: {row.get('error', f'{self.last:.1f} s')}")
        gc.collect()  # the arrays of a cell that failed hang on its traceback

    def skip(self, sentence: str) -> None:
        """Says what cannot be measured here, and why; another run tries again."""
        console.print(f"{self.about['section']}: skipped: {sentence}")


def first_line(error: BaseException) -> str:
    """Returns the beginning of what an error says."""
    return (str(error).strip().splitlines() or [""])[0][:300]
