"""Measures on an accelerator what the papers' speeds depend on: five sections, fifteen minutes.

python -m benchmarks.accelerator --out FILE            # Llama-2-7B's shape, and SmolLM2's answers
python -m benchmarks.accelerator --section rounds      # one section
python -m benchmarks.accelerator --shape tiny --model jspec-800k       # on a CPU

Sections run in the order of their weight. A section's programs are compiled side by side, in
threads; then each row is written before the next is measured. Rows that the file holds are not
measured again: what was stopped goes on where it was. No row is begun after `--seconds`.
"""

import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from benchmarks import options
from benchmarks.accelerator.sections import SECTIONS
from benchmarks.accelerator.shapes import SHAPES, Shape
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from jspec._validate.errors import InputError

THREADS = 10
"""Programs that are compiled at once."""


def main(
    out: Annotated[Path | None, typer.Option(help="JSON lines, which a run goes on with")] = None,
    section: Annotated[
        str | None, typer.Option(help=f"comma-separated, of {', '.join(SECTIONS)}")
    ] = None,
    shape: Annotated[str, typer.Option(help=f"of the models, of {', '.join(SHAPES)}")] = "7B",
    model: options.Model = None,
    seconds: Annotated[float, typer.Option(min=0, help="then it ends")] = 870,
) -> None:
    """Measures what the file lacks."""
    names = list(SECTIONS) if section is None else section.split(",")
    for name, known, option in (*((name, SECTIONS, "section") for name in names),
                                (shape, SHAPES, "shape")):  # fmt: skip
        if name not in known:
            raise InputError(f"--{option} {name} is not there; give one of {', '.join(known)}")
    size = SHAPES[shape]
    left = run(names, out, seconds, size if model is None else replace(size, checkpoint=model))
    if left:
        console.print(f"not done: {'; '.join(left)}. The same command goes on from here.")


def run(names: list[str], out: Path | None, seconds: float, shape: Shape) -> list[str]:
    """Runs sections in turn until the time is over; returns what there was no time for."""
    ends, left = time.monotonic() + seconds, []
    headline(f"{', '.join(names)}: {shape.name} in {shape.dtype}, {shape.past} tokens live")
    for name in names:
        ledger = Ledger(out, dict(
            bench="accelerator", section=name, shape=shape.name, dtype=shape.dtype,
            past=shape.past, model=shape.checkpoint, kind=jax.local_devices()[0].device_kind,
        ))  # fmt: skip
        cells = [cell for cell in SECTIONS[name](shape) if not ledger.find(**cell.about)]
        late = time.monotonic() >= ends
        with ThreadPoolExecutor(THREADS) as pool:
            programs = [] if late else list(pool.map(lambda cell: attempt(cell.prepare), cells))
        for place, cell in enumerate(cells):
            label = f"{name}, {', '.join(map(str, cell.about.values()))}"
            begin = time.monotonic()
            if begin >= ends:
                left.append(label)
                continue
            program, programs[place] = programs[place], {}  # its arrays go with the row
            row = (
                program
                if is_error(program)
                else attempt(lambda cell=cell, program=program: cell.measure(program))
            )
            ledger.add(**cell.about, **row)
            taken = time.monotonic() - begin
            console.print(f"{label}: {row} ({taken:.1f} s)", highlight=False, soft_wrap=True)
            del program
            gc.collect()  # the arrays of a cell that failed hang on its traceback
    return left


def attempt(measure: Callable[[], Any]) -> Any:
    """Returns what it gives, or the error as a row: accelerators fail in their own ways."""
    try:
        return measure()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.300}"}


def is_error(program: Any) -> bool:
    """Returns whether a cell could not be prepared."""
    return isinstance(program, dict) and "error" in program


if __name__ == "__main__":
    command(main)
