"""Helpers that all benches share: paired timing, provenance of a number."""

import ctypes
import gc
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

import jax
import numpy as np
import typer
from rich.console import Console

from jspec._validate.errors import InputError
from jspec.cli.bench.timing import device, in_turn

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("JSPEC_SHARED", ROOT.parent / "shared"))
"""The folder of the checkpoints and texts that the project does not ship."""

_MANY_MAPS = 20_000

console = Console(width=None if sys.stdout.isatty() else 140)


def command(main: Callable[..., None] | typer.Typer) -> None:
    """Runs a bench as a command; what was wrong with its arguments is one sentence."""
    try:
        main() if isinstance(main, typer.Typer) else typer.run(main)
    except InputError as error:
        raise SystemExit(f"error: {error}") from None


def provenance() -> dict[str, str]:
    """Returns the date, device and versions that a number was measured with."""
    return {
        "date": date.today().isoformat(),
        "device": device(),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


def invocation() -> str:
    """Returns the command that runs, without the folders of this machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = sys.argv[0] if spec is None else spec.name.removesuffix(".__main__")
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    return " ".join(["python -m", Path(name).name, *words])


def headline(what: str) -> None:
    """Prints the title of a bench and its provenance."""
    console.print(f"[bold]{what}[/bold]")
    console.print(", ".join(f"{key} {value}" for key, value in provenance().items()))


def paired(runs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, np.ndarray]:
    """Returns seconds of each run, in turn (A B A B ...), so that drift hits all runs alike.

    One warm-up each. `seconds["a"] / seconds["b"]` then pairs neighbours in time.
    """
    ready = {name: (lambda run=run: jax.block_until_ready(run())) for name, run in runs.items()}
    in_turn(ready, 1)
    timed = in_turn(ready, repeats)
    return {name: np.array(one.seconds) for name, one in timed.items()}


def few_programs() -> None:
    """Drops all compiled programs once there are many: they come back from the cache on disk.

    Each holds some memory maps, and Linux ends a process that wants more than 65,530 with a
    segmentation fault; a third of that takes 3 GB. To count them takes up to 40 ms.
    """
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > _MANY_MAPS:
        jax.clear_caches()
        gc.collect()
        # What was freed is given back to the system only when glibc is asked to: gigabytes.
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)


def record(path: Path | None, row: dict) -> None:
    """Appends one JSON line, provenance included."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(provenance() | row) + "\n")
