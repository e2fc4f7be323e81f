"""The rows of one device, version and shape, with the figures that follow from them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator import forwards
from benchmarks.accelerator.cells import BEGUN
from benchmarks.accelerator.shapes import SCALES, Scale
from benchmarks.ledger import Ledger

SAME = ("bench", "kind", "jax", "sources", "scale")
"""The keys in which rows agree that are shown together."""


class MethodFigures(NamedTuple):
    """A method on real text, over plain decoding in the same process."""

    tokens_per_round: float
    rate: float
    """Tokens a second."""
    gain: float
    """The geometric mean over prompts; a prompt's is the median of its pairs."""
    lowest: float
    highest: float


def median(row: dict) -> float:
    """The median of a row's seconds."""
    return float(np.median(row["seconds"]))


def milliseconds(row: dict) -> str:
    """The median of a row's seconds, in milliseconds."""
    return f"{1e3 * median(row):.3f}"


@dataclass(frozen=True)
class Results:
    """The rows that belong together: all that agree with the last one of a file."""

    rows: list[dict]

    @classmethod
    def of(cls, ledger: Ledger) -> "Results | None":
        """The results of the last run that wrote to a ledger; None if there is none."""
        rows = [row for row in ledger.find(bench="accelerator") if BEGUN not in row]
        if not rows:
            return None
        return cls([row for row in rows if all(row[key] == rows[-1][key] for key in SAME)])

    @property
    def last(self) -> dict:
        return self.rows[-1]

    @property
    def scale(self) -> Scale:
        return SCALES[self.last["scale"]]

    def find(self, **wanted: Any) -> list[dict]:
        """Rows with these values."""
        return [row for row in self.rows if all(row.get(key) == wanted[key] for key in wanted)]

    @property
    def device(self) -> dict | None:
        """The row of the device, if it was measured."""
        return next((row for row in self.find(section="device") if "error" not in row), None)

    def forwards(self) -> dict[tuple[str, int, int], dict]:
        """Rows of forwards by (way, batch, width)."""
        rows = self.find(section="forwards")
        return {(row["way"], row["batch"], row["width"]): row for row in rows}

    def grid(self) -> dict[tuple[int, int], dict]:
        """Rows of forwards by (batch, width), of the way that the grid is measured in."""
        return {
            (batch, width): row
            for (way, batch, width), row in self.forwards().items()
            if way == self.scale.grid and batch in self.scale.batches
            and width in self.scale.widths
        }  # fmt: skip

    def bound(self, batch: int, width: int) -> float:
        """Seconds below which no forward can be: its bytes, or its operations, at full speed."""
        scale, device = self.scale, self.device or {}
        sizes = batch, width, scale.capacity
        read = forwards.read_bytes(scale.config, jnp.dtype(scale.dtype).itemsize, *sizes)
        seconds = read / device.get("bandwidth", float("nan"))
        if peak := device.get("peak"):
            seconds = max(seconds, forwards.operations(scale.config, *sizes) / peak)
        return seconds

    def cell(self, row: dict | None, show: Callable[[dict], str]) -> str:
        """A row as a cell of a table: what is missing is empty, what failed says so."""
        if row is None:
            return ""
        if "error" in row:
            return "out of memory" if "RESOURCE_EXHAUSTED" in row["error"] else "failed"
        return show(row)

    def bound_cell(self, row: dict | None) -> str:
        """The bound of a forward, in milliseconds."""
        return self.cell(row, lambda row: f"{1e3 * self.bound(row['batch'], row['width']):.3f}")

    def ratio_cell(self, row: dict | None, one: dict | None) -> str:
        """t(N)/t(1), and the share of the bound in t(N)."""

        def show(row: dict) -> str:
            bound = f"{self.bound(row['batch'], row['width']) / median(row):.0%}"
            known = one is not None and "error" not in one
            return f"{median(row) / median(one):.2f} ({bound})" if known else f"({bound})"

        return self.cell(row, show)

    def share(self, row: dict) -> str:
        """The share of a round that its like without a forward takes, see `overhead`."""
        key = {name: row[name] for name in ("method", "batch", "forced")}
        hollow = next(iter(self.find(section="overhead", **key)), None)
        return self.cell(hollow, lambda hollow: f"{median(hollow) / median(row):.1%}")

    def method(self, row: dict) -> MethodFigures:
        """The figures of a method's row."""
        plain, drafted = np.array(row["plain_seconds"]), np.array(row["seconds"])
        gains = np.median(plain / drafted, axis=1)
        return MethodFigures(
            tokens_per_round=row["tokens"] / row["rounds"],
            rate=row["tokens"] / float(np.median(drafted, axis=1).sum()),
            gain=float(np.exp(np.log(gains).mean())),
            lowest=float(gains.min()),
            highest=float(gains.max()),
        )

    @cached_property
    def forced(self) -> dict[int, list[tuple[float, float]]]:
        """Pairs (tokens a round, speed over plain) of forced acceptance, by batch."""
        found: dict[int, list[tuple[float, float]]] = {}
        for row in self.find(section="rounds", method="forced"):
            if "error" not in row:
                pair = row["tokens_per_round"], float(np.median(row["gains"]))
                found.setdefault(row["batch"], []).append(pair)
        return found
