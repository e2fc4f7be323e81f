"""Seconds per call on a device that works while the host goes on, and of compiling."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from benchmarks.harness import paired

QUEUED_SECONDS = 0.05
MOST_QUEUED = 32


def per_call(run: Callable[[], Any], repeats: int) -> list[float]:
    """Returns the seconds of a call, once for each sample.

    On an accelerator a sample is several calls that queue up, the last of which is waited for: the
    host's part then hides behind the device's, as in a loop. On a CPU, which may run calls side by
    side, each call is waited for.
    """
    count = _count(run)

    def several() -> Any:
        result = None
        for _ in range(count):
            result = run()  # the one before is dropped: memory holds two at most
        return result

    return (paired({"run": several}, repeats)["run"] / count).tolist()


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
    trace_seconds: float
    compile_seconds: float

    def about(self) -> dict[str, float]:
        """Returns what a row says of it."""
        return {"trace_seconds": self.trace_seconds, "compile_seconds": self.compile_seconds}


def compiled(function: Any, *args: Any) -> Compiled:
    """Compiles a jitted function for these arguments, ahead of the first call."""
    begin = time.perf_counter()
    lowered = function.lower(*args)
    traced = time.perf_counter()
    program = lowered.compile()
    return Compiled(program, traced - begin, time.perf_counter() - traced)
