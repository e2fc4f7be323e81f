"""What speculation costs and gains on the accelerator at hand: one command, under ten minutes.

python -m benchmarks.accelerator                       # on a CPU the same in small
python -m benchmarks.accelerator --section forwards    # one section, in this process
python -m benchmarks.accelerator --section report      # tables and figures of what is there
python -m benchmarks.accelerator --compile-only h100:1 # nothing is run: every program, compiled

Rows that the folder holds are not measured again, if device, versions and the library's sources
are the same: what was stopped goes on where it was. Each group of sections has a process of its
own, so that a failure, or a setting of XLA, stays inside. What XLA tuned lies in the folder's
`autotuned`: `XLA_FLAGS=--xla_gpu_load_autotune_results_from=FILE` takes it up.
"""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import jax
import typer

from benchmarks.accelerator import ahead, devices, report, sections, shapes
from benchmarks.accelerator.cells import note_stop
from benchmarks.harness import ROOT, command, console
from jspec._validate.errors import InputError
from jspec.planning.topology import Topology

LEFT = 3
"""The exit code of a process that had no time for everything."""
GRACE = 20.0
"""Seconds that a process may take beyond its time before it is ended."""
LEAST = 5.0
"""Seconds below which no process is begun."""


def main(
    section: Annotated[
        str | None,
        typer.Option(help=f"comma-separated, of {', '.join(sections.SECTIONS)}, report"),
    ] = None,
    budget_seconds: Annotated[float, typer.Option(min=0, help="then it stops by itself")] = 570,
    scale: Annotated[
        str | None, typer.Option(help="the shape, else the largest that the memory holds")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="folder, bundled name or hub id; may be repeated")
    ] = None,
    variant: Annotated[
        str, typer.Option(help="name of the settings of XLA that rows are to have")
    ] = "",
    compile_only: Annotated[
        str | None,
        typer.Option(help="a GPU that need not be here, such as h100:1: compile all, run nothing"),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="folder of the rows, the figures and the summary")
    ] = ROOT / "results" / "accelerator",
) -> None:
    """Measures what the folder lacks, and prints the summary."""
    if scale is not None and scale not in shapes.SCALES:
        known = ", ".join(shapes.SCALES)
        raise typer.BadParameter(f"--scale {scale} is unknown; known: {known}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--out {out} cannot be written: {error.strerror}") from error
    rows = out / "rows.jsonl"
    chosen = [] if section in (None, "report") else section.split(",")
    if wrong := [name for name in chosen if name not in sections.SECTIONS]:
        raise typer.BadParameter(
            f"--section {wrong[0]} is unknown; known: {', '.join(sections.SECTIONS)}, report"
        )
    if compile_only is not None:
        compile_all(compile_only, shapes.SCALES[scale or "8B"], out, budget_seconds, chosen)
        return
    if chosen:
        if variant not in sections.VARIANTS:
            known = ", ".join(filter(None, sections.VARIANTS))
            raise typer.BadParameter(f"--variant {variant} is unknown; known: {known}")
        shape = shapes.SCALES[scale] if scale else shapes.fitting(devices.memory())
        if model:
            shape = replace(shape, models=tuple(model))
        left = sections.run(chosen, rows, budget_seconds, shape, variant)
        raise typer.Exit(LEFT if left else 0)
    left = []
    if section is None:
        options = [] if scale is None else ["--scale", scale]
        for name in model or ():
            options += ["--model", name]
        left = conduct(rows, budget_seconds, [*options, "--out", str(out.resolve())])
    report.write(rows, out)
    if left:
        console.print("not done: " + "; ".join(left), soft_wrap=True)
        console.print("The same command goes on from here.")


def compile_all(
    topology: str, shape: shapes.Scale, out: Path, seconds: float, names: list[str]
) -> None:
    """Compiles the programs of sections, all of them if none is named, and prints the rows."""
    # What is traced runs here, whatever it is compiled for.
    jax.config.update("jax_platforms", "cpu")
    rows = out / "compiled.jsonl"
    try:
        left = ahead.write(Topology.of(topology), shape, rows, seconds, names)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error
    report.write_compiled(rows)
    if left:
        console.print(f"not compiled: {'; '.join(left)}", soft_wrap=True)


def conduct(rows: Path, budget_seconds: float, options: list[str]) -> list[str]:
    """Runs all groups of sections, each in a process, until all is measured or time is up.

    Returns:
        The names of the groups that are not done.
    """
    ends = time.monotonic() + budget_seconds
    waiting = list(sections.GROUPS)
    while waiting:
        again = []
        before = rows.stat().st_size if rows.is_file() else 0
        for index, group in enumerate(waiting):
            if group.variant and not sections.on_cuda(rows):
                continue  # flags of XLA for CUDA
            remaining = ends - time.monotonic()
            share = group.seconds / sum(other.seconds for other in waiting[index:])
            if remaining < LEAST or _process(rows, group, remaining * share, remaining, options):
                again.append(group)
        after = rows.stat().st_size if rows.is_file() else 0
        if ends - time.monotonic() < LEAST or after == before:
            return [group.name for group in again]
        waiting = again
    return []


def _process(
    rows: Path, group: "sections.Group", seconds: float, remaining: float, options: list[str]
) -> bool:
    """Runs a group; True if it has something left."""
    arguments = [
        sys.executable, "-m", "benchmarks.accelerator", "--section", ",".join(group.sections),
        "--budget-seconds", f"{seconds:.0f}", "--variant", group.variant, *options,
    ]  # fmt: skip
    tuned = rows.parent / "autotuned"
    tuned.mkdir(exist_ok=True)
    own = f"--xla_gpu_dump_autotune_results_to={tuned.resolve() / group.file}"
    given = os.environ.get("XLA_FLAGS", "")
    flags = " ".join(filter(None, (given, own, sections.VARIANTS[group.variant])))
    environment = os.environ | {"XLA_FLAGS": flags}
    limit = min(seconds + GRACE, max(remaining, seconds))
    try:
        done = subprocess.run(arguments, cwd=ROOT, env=environment, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        note_stop(rows)
        console.print(f"{group.name}: ended, its time was up")
        return True
    if done.returncode not in (0, LEFT):
        console.print(f"{group.name}: the process ended with {done.returncode}")
    return done.returncode != 0


if __name__ == "__main__":
    command(main)
