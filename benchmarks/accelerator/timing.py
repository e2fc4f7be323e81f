"""Seconds per call on a device that works while the host goes on."""

import time
from collections.abc import Callable
from typing import Any

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
