"""The tables of all rows that were measured, as a page of results takes them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from rich.markup import escape

from benchmarks.accelerator import forwards
from benchmarks.accelerator.cells import BEGUN
from benchmarks.accelerator.shapes import SCALES
from benchmarks.harness import console
from benchmarks.ledger import Ledger

SUMMARY = "summary.md"
SAME = ("bench", "kind", "jax", "sources", "scale", "one_graph")
"""The keys in which rows agree that are shown together."""

Columns = Mapping[str, Callable[[dict], str]]
"""What stands over each column of a table, and how a row shows there."""


def write(rows: Path, folder: Path) -> None:
    """Prints the tables of the last run that wrote to a file, and writes them to a folder."""
    found = [row for row in Ledger(rows).rows if BEGUN not in row]
    found = [row for row in found if all(row.get(key) == found[-1].get(key) for key in SAME)]
    if not found:
        console.print(f"{rows} holds no rows yet")
        return
    text = "\n".join(summary(found))
    console.print(escape(text), soft_wrap=True, highlight=False)
    (folder / SUMMARY).write_text(text + "\n", "utf-8")


def summary(found: Sequence[dict]) -> list[str]:
    """Returns the lines of a section of benchmarks/results/engineering_devices.md."""
    last, scale = found[-1], SCALES[found[-1]["scale"]]
    sections = {name: [row for row in found if row["section"] == name] for name in _TABLES}
    about = (
        f"{last['date']}, {last['device']}, JAX {last['jax']}, Python {last['python']}, sources "
        f"{last['sources']}. A Llama of {scale.name} shape in {scale.dtype} with random weights, "
        f"{scale.past} of {scale.capacity} positions live. `python -m benchmarks.accelerator`"
    )
    lines = [f"### {last['kind']}, {scale.name}", "", about]
    for name, told in _TABLES.items():
        if part := told([row for row in sections[name] if "error" not in row], found):
            lines += ["", *part]
    errors = [_error(row) for row in found if "error" in row or row.get("finite") is False]
    return lines + (["", *errors] if errors else [])


def table(said: str, rows: Iterable[dict], columns: Columns) -> list[str]:
    """Returns a sentence and a table with a line for each row; nothing without rows."""
    cells = [[show(row) for show in columns.values()] for row in rows]
    head = [list(columns), ["---"] * len(columns)]
    return [said, "", *(f"| {' | '.join(row)} |" for row in head + cells)] if cells else []


def median(row: Mapping) -> float:
    """Returns the median of a row's seconds."""
    return float(np.median(row["seconds"]))


def milliseconds(row: Mapping) -> str:
    """Returns the median of a row's seconds, in milliseconds."""
    return f"{1e3 * median(row):.3f}"


def bound(found: Sequence[dict], batch: int, width: int) -> float:
    """Returns the seconds below which no forward can be: its bytes or operations at full speed."""
    device = next((row for row in found if "bandwidth" in row), {})
    scale = SCALES[found[-1]["scale"]]
    sizes = batch, width, scale.capacity
    read = forwards.read_bytes(scale.config, jnp.dtype(scale.dtype).itemsize, *sizes)
    seconds = read / device.get("bandwidth", float("nan"))
    if peak := device.get("peak"):
        seconds = max(seconds, forwards.operations(scale.config, *sizes) / peak)
    return seconds


def _error(row: dict) -> str:
    names = ("section", "model", "method", "batch", "width", "dtype", "precision")
    about = ", ".join(str(row[name]) for name in names if row.get(name))
    return f"- {about}: {row.get('error', 'its scores are not finite')}"


def _compiling(row: dict) -> str:
    if "compile_seconds" not in row:
        return ""
    return f"{row['trace_seconds']:.1f} + {row['compile_seconds']:.1f}"


def _device(rows: Sequence[dict], found: Sequence[dict]) -> list[str]:
    del found
    if not rows:
        return []
    row = rows[-1]
    settings = ", ".join(f"{name} {value or 'not set'}" for name, value in row["settings"].items())
    said = (
        f"The bound takes {row['bandwidth'] / 1e9:.0f} GB/s; a copy moves "
        f"{row['copy_bandwidth'] / 1e9:.0f} GB/s. Settings: {settings}."
    )
    return [said]


def _forwards(rows: Sequence[dict], found: Sequence[dict]) -> list[str]:
    ones = {row["batch"]: median(row) for row in rows if row["width"] == 1}

    def ratio(row: dict) -> str:
        one = ones.get(row["batch"])
        return f"{median(row) / one:.2f}" if one else ""

    columns: Columns = {
        "batch": lambda row: str(row["batch"]),
        "N": lambda row: str(row["width"]),
        "t(N), ms": milliseconds,
        "t(N)/t(1)": ratio,
        "bound over t(N)": lambda row: (
            f"{bound(found, row['batch'], row['width']) / median(row):.0%}"
        ),
        "tracing + compiling, s": _compiling,
    }
    rows = sorted(rows, key=lambda row: (row["batch"], row["width"]))
    return table("A forward of N tokens:", rows, columns)


def _rounds(rows: Sequence[dict], found: Sequence[dict]) -> list[str]:
    del found
    each = [
        {**row, "kind": kind, **timed, "hollow": row["hollow"][kind]}
        for row in rows
        for kind, timed in row["kinds"].items()
    ]
    plain = {row["batch"]: median(row) for row in each if row["method"] == "plain"}

    def speed(row: dict) -> str:
        one = plain.get(row["batch"])
        forced = row["method"] == "forced"
        return f"{row['tokens_per_round'] * one / median(row):.2f}x" if one and forced else ""

    def over_plain(row: dict) -> str:
        return f"{median(row) / plain[row['batch']]:.2f}" if row["batch"] in plain else ""

    columns: Columns = {
        "method": lambda row: row["method"],
        "batch": lambda row: str(row["batch"]),
        "round": lambda row: row["kind"],
        "ms": milliseconds,
        "over plain": over_plain,
        "all but the forward": lambda row: f"{median(row['hollow']) / median(row):.1%}",
        "speed at its forced tokens": speed,
        "tracing + compiling, s": _compiling,
    }
    return table("A round, by method; acceptance of *forced* ones is as told:", each, columns)


def _methods(rows: Sequence[dict], found: Sequence[dict]) -> list[str]:
    del found

    def gains(row: dict) -> np.ndarray:
        return np.median(np.array(row["plain_seconds"]) / np.array(row["seconds"]), axis=1)

    columns: Columns = {
        "model": lambda row: row["model"],
        "method": lambda row: row["method"],
        "tokens a round": lambda row: f"{row['tokens'] / row['rounds']:.2f}",
        "tokens/s": lambda row: f"{row['tokens'] / np.median(row['seconds'], axis=1).sum():.0f}",
        "speed over plain": lambda row: f"{np.exp(np.log(gains(row)).mean()):.2f}x",
        "by prompt": lambda row: f"{gains(row).min():.2f} .. {gains(row).max():.2f}",
        "texts unlike plain": lambda row: f"{row['differing']}/{row['num_prompts']}",
        "dtype": lambda row: row["dtype"],
    }
    source = ", ".join(dict.fromkeys(row["prompts"] for row in rows))
    return table(f"Real text ({source}), batch 1, greedy, prefill included:", rows, columns)


def _parity(rows: Sequence[dict], found: Sequence[dict]) -> list[str]:
    del found
    columns: Columns = {
        "model": lambda row: row["model"],
        "dtype": lambda row: row["dtype"],
        "matmul precision": lambda row: row["precision"],
        "method": lambda row: row["method"],
        "equal to plain": lambda row: (
            f"{row['sequences'] - len(row['first_divergence'])}/{row['sequences']}"
        ),
        "first divergence at token": lambda row: (
            ", ".join(map(str, sorted(row["first_divergence"]))) or "none"
        ),
    }
    return table("Greedy tokens against plain, all prompts in one batch:", rows, columns)


_TABLES = {
    "device": _device,
    "forwards": _forwards,
    "rounds": _rounds,
    "methods": _methods,
    "parity": _parity,
}
