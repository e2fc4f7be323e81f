"""Pieces of a round, compiled one by one and timed in turn."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Piece:
    """A compiled function and its arguments."""

    run: Callable[..., Any]
    arguments: tuple
    donates: bool = False
    """True where a call donates its arguments, which are then gone: it gets copies."""


def medians(pieces: Mapping[str, Piece], repeats: int) -> dict[str, float]:
    """Returns seconds of each piece, taken in turn; the first turn, which compiles, is dropped."""
    times: dict[str, list[float]] = {name: [] for name in pieces}
    for repeat in range(repeats + 1):
        for name, piece in pieces.items():
            arguments = piece.arguments
            if piece.donates:
                arguments = jax.block_until_ready(jax.tree.map(jnp.copy, arguments))
            start = time.perf_counter()
            jax.block_until_ready(piece.run(*arguments))
            if repeat:
                times[name].append(time.perf_counter() - start)
    return {name: float(np.median(taken)) for name, taken in times.items()}
