"""Seconds per call on a device that works while the host goes on, and of compiling."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks.harness import paired
from jspec.planning import launches
from jspec.planning.launches import Rounds

QUEUED_SECONDS = 0.05
MOST_QUEUED = 32


def per_call(runs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of a call of each run, taken in turn.

    On an accelerator a sample is several calls that queue up, the last of which is waited for: the
    host's part then hides behind the device's, as in a loop. On a CPU, which may run calls side by
    side, each call is waited for.
    """
    counts = {name: _count(run) for name, run in runs.items()}

    def several(run: Callable[[], Any], count: int) -> Callable[[], Any]:
        def call() -> Any:
            result = None
            for _ in range(count):
                result = run()  # the one before is dropped: memory holds two at most
            return result

        return call

    seconds = paired({name: several(run, counts[name]) for name, run in runs.items()}, repeats)
    return {name: (taken / counts[name]).tolist() for name, taken in seconds.items()}


def _count(run: Callable[[], Any]) -> int:
    jax.block_until_ready(run())
    if jax.default_backend() == "cpu":
        return 1
    begin = time.perf_counter()
    jax.block_until_ready(run())
    taken = time.perf_counter() - begin
    return max(1, min(MOST_QUEUED, int(QUEUED_SECONDS / max(taken, 1e-9))))


class Compiled(NamedTuple):
    """A program, and what it took to make it."""

    run: Callable[..., Any]
    text: str
    """The optimised HLO."""
    trace_seconds: float
    compile_seconds: float
    rounds: Rounds | None = None
    """What its rounds launch, if that was asked for, and XLA says it."""


def compiled(
    function: Any, *args: Any, options: Mapping[str, Any] | None = None, is_loop: bool = False
) -> Compiled:
    """Compiles a jitted function for these arguments, ahead of the first call.

    Args:
        function: jitted.
        args: of it.
        options: of the compiler.
        is_loop: whether it is a loop of rounds, whose launches are to be counted on a GPU.
    """
    begin = time.perf_counter()
    lowered = function.lower(*args)
    traced = time.perf_counter()
    found = None
    with tempfile.TemporaryDirectory() as folder:
        asked = dict(options or {})
        counts = is_loop and jax.default_backend() == "gpu"
        if counts:
            asked |= {"xla_dump_to": folder, **launches.OPTIONS}
        program = lowered.compile(compiler_options=asked or None)
        ended = time.perf_counter()
        if counts:
            # The text is XLA's own, and may change.
            with contextlib.suppress(ValueError):
                found = launches.of_rounds(Path(folder))
    return Compiled(program, program.as_text() or "", traced - begin, ended - traced, found)
