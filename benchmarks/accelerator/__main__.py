"""Measures what speculation costs and gains on the device at hand: one command, under ten minutes.

python -m benchmarks.accelerator                       # on a CPU the same in small
python -m benchmarks.accelerator --section forwards    # one section
python -m benchmarks.accelerator --section report      # the tables of what is there

Each row is written before the next is measured, and rows that the folder holds are not measured
again, if device, versions and the library's sources are the same: what was stopped goes on where it
was.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import jax
import typer

from benchmarks.accelerator import devices, forwards, methods, parity, report, rounds, shapes
from benchmarks.accelerator.cells import Cells, fingerprint, first_line
from benchmarks.harness import ROOT, command, console, headline
from benchmarks.ledger import Ledger
from jspec._xla import one_graph

SECTIONS: dict[str, tuple[Callable[[Cells, shapes.Scale], None], float]] = {
    "device": (devices.measure, 10),
    "forwards": (forwards.measure, 130),
    "rounds": (rounds.measure, 300),
    "methods": (methods.measure, 90),
    "parity": (parity.measure, 40),
}
"""Measurements of each section, and about how many seconds of an accelerator they take."""


def main(
    section: Annotated[
        str | None, typer.Option(help=f"comma-separated, of {', '.join(SECTIONS)}, report")
    ] = None,
    budget_seconds: Annotated[float, typer.Option(min=0, help="then it stops by itself")] = 570,
    scale: Annotated[
        str | None, typer.Option(help="the shape, else the largest that the memory holds")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="folder, bundled name or hub id; may be repeated")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder of the rows and the summary")] = ROOT
    / "results"
    / "accelerator",
) -> None:
    """Measures what the folder lacks, and prints the tables."""
    if scale is not None and scale not in shapes.SCALES:
        known = ", ".join(shapes.SCALES)
        raise typer.BadParameter(f"--scale {scale} is unknown; known: {known}")
    names = list(SECTIONS) if section is None else section.split(",")
    if wrong := [name for name in names if name not in (*SECTIONS, "report")]:
        known = ", ".join(SECTIONS)
        raise typer.BadParameter(f"--section {wrong[0]} is unknown; known: {known}, report")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--out {out} cannot be written: {error.strerror}") from error
    rows = out / "rows.jsonl"
    left = []
    if measured := [name for name in names if name != "report"]:
        shape = shapes.SCALES[scale] if scale else shapes.fitting(devices.memory())
        if model:
            shape = replace(shape, models=tuple(model))
        left = run(measured, rows, budget_seconds, shape)
    report.write(rows, out)
    if left:
        console.print("not done: " + "; ".join(left), soft_wrap=True)
        console.print("The same command goes on from here.")


def run(names: Sequence[str], rows: Path, seconds: float, scale: shapes.Scale) -> list[str]:
    """Runs sections, each within its share of the time, and returns what was left out."""
    ends = time.monotonic() + seconds
    ledger, device = Ledger(rows), jax.local_devices()[0]
    headline(f"{', '.join(names)}: {scale.name} in {scale.dtype}")
    about = {
        "bench": "accelerator",
        "kind": device.device_kind,
        "platform": device.platform,
        "jax": jax.__version__,
        "sources": fingerprint(),
        "scale": scale.name,
        "one_graph": one_graph.asked(),
    }
    left = []
    for index, name in enumerate(names):
        waiting = sum(SECTIONS[other][1] for other in names[index:])
        measure, share = SECTIONS[name]
        share *= max(ends - time.monotonic(), 0) / waiting
        cells = Cells(ledger, about | {"section": name}, time.monotonic() + share)
        try:
            measure(cells, scale)
        except Exception as error:  # what fails outside of a cell costs its section only
            console.print(f"{name}: {type(error).__name__}: {first_line(error)}")
            left.append(name)
        left += [f"{name}: {one}" for one in cells.left]
    return left


if __name__ == "__main__":
    command(main)
