"""Measures on an accelerator what the papers' speeds depend on: six sections, ten minutes.

python -m benchmarks.accelerator                       # Llama-2-7B's shape in bfloat16
python -m benchmarks.accelerator --section rounds      # one section
python -m benchmarks.accelerator --shape tiny          # on a CPU

Sections run in the order of their weight. Each row is written before the next is measured, and rows
that the file holds are not measured again: what was stopped goes on where it was.
"""

import gc
import time
from pathlib import Path
from typing import Annotated

import jax
import typer

from benchmarks.accelerator.passes import drafts, heads, kernels, passes
from benchmarks.accelerator.rounds import rounds, shares
from benchmarks.accelerator.shapes import SHAPES, Measurement, Shape
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from jspec._validate.errors import InputError

SECTIONS = {
    "passes": passes, "heads": heads, "kernels": kernels, "shares": shares,
    "drafts": drafts, "rounds": rounds,
}  # fmt: skip
"""The measurements of each section, in the order in which they run."""


def main(
    out: Annotated[Path | None, typer.Option(help="JSON lines, which a run goes on with")] = None,
    section: Annotated[
        str | None, typer.Option(help=f"comma-separated, of {', '.join(SECTIONS)}")
    ] = None,
    shape: Annotated[str, typer.Option(help=f"of the models, of {', '.join(SHAPES)}")] = "7B",
    seconds: Annotated[float, typer.Option(min=0, help="then it ends")] = 570,
) -> None:
    """Measures what the file lacks."""
    names = list(SECTIONS) if section is None else section.split(",")
    for given, known, option in (*((name, SECTIONS, "section") for name in names),
                                 (shape, SHAPES, "shape")):  # fmt: skip
        if given not in known:
            raise InputError(f"--{option} {given} is not there; give one of {', '.join(known)}")
    left = run(names, out, seconds, SHAPES[shape])
    if left:
        console.print(f"not done: {'; '.join(left)}. The same command goes on from here.")


def run(names: list[str], out: Path | None, seconds: float, shape: Shape) -> list[str]:
    """Runs sections in turn until the time is over; returns what there was no time for."""
    ends, last, left = time.monotonic() + seconds, 0.0, []
    headline(f"{', '.join(names)}: {shape.name} in {shape.dtype}, {shape.past} tokens live")
    for name in names:
        ledger = Ledger(out, dict(
            bench="accelerator", section=name, shape=shape.name, dtype=shape.dtype,
            past=shape.past, kind=jax.local_devices()[0].device_kind,
        ))  # fmt: skip
        for key, measure in SECTIONS[name](shape):
            told = f"{name}, {', '.join(map(str, key.values()))}"
            if ledger.find(**key):
                continue
            begin = time.monotonic()
            if begin + last > ends:
                left.append(told)
                continue
            row = measured(measure)
            ledger.add(**key, **row)
            last = time.monotonic() - begin
            console.print(f"{told}: {row} ({last:.1f} s)", highlight=False, soft_wrap=True)
            gc.collect()  # the arrays of a cell that failed hang on its traceback
    return left


def measured(measure: Measurement) -> dict:
    """Returns what is measured, or the error: accelerators fail in their own ways."""
    try:
        return measure()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.300}"}


if __name__ == "__main__":
    command(main)
