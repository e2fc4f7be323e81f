"""Seconds of runs that take turns, so that drift affects all of them alike."""

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


@dataclass
class Timed(Generic[T]):
    """The last result of a run, and its time in each repeat."""

    value: T
    seconds: list[float] = field(default_factory=list)


def in_turn(runs: Mapping[K, Callable[[], T]], repeats: int) -> dict[K, Timed[T]]:
    """Returns times runs in turn, A B A B and so on; nothing is warmed up here."""
    timed: dict[K, Timed[T]] = {}
    for _ in range(repeats):
        for name, run in runs.items():
            begin = time.perf_counter()
            value = run()
            seconds = time.perf_counter() - begin
            timed.setdefault(name, Timed(value)).value = value
            timed[name].seconds.append(seconds)
    return timed


def device(more: str = "") -> str:
    """Returns the devices that are timed, with the machine that they are in, and more about it."""
    import jax

    kind = jax.devices()[0].device_kind
    return f"{jax.device_count()} x {kind} ({platform.machine()}, {os.cpu_count()} cores{more})"
