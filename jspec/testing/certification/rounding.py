"""Rounding errors of the target's logits, by which a divergence is judged a tie."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jspec.protocols import CausalLM
from jspec.round.forward import precision_of
from jspec.testing.certification.forwards import replay
from jspec.types import PyTree

_FLOOR = 2.0
"""Units in the last place that are rounding, whatever was measured."""
_MARGIN = 2.0
"""Factor on the largest error of a sample that a tie may need."""


@dataclass(frozen=True)
class Rounding:
    """The rounding of a target, measured on its own plain texts without any drafter."""

    dtype: str
    """The dtype of the target's keys and values."""
    epsilon: float
    """The distance from 1 to the next number of that dtype."""
    width: int
    """Tokens of the widest forward pass that was compared; 1: there was none."""
    num_places: int
    """Places of the texts that were measured."""
    bound: float
    """The gap between the two best tokens up to which rounding may have swapped them."""
    drawn_bound: float
    """The same of any two tokens that sampling draws."""
    blind: float
    """Share of places whose best tokens are so close that a bug looks like a tie."""
    equal_bits: float
    """The share of places whose largest logits are bitwise equal in the widest forward pass,
    over a chain, and in passes of one token.
    """
    precision: str | None = None
    """The precision of products, as JAX names it; None: the device's default."""


def ulp(value: float, epsilon: float) -> float:
    """Returns the distance of a number of this size to the next one."""
    size = max(abs(value), float(np.finfo(np.float32).tiny))
    return epsilon * 2.0 ** math.floor(math.log2(size))


def measure(
    model: CausalLM,
    params: PyTree,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    widths: Sequence[int],
    batch_size: int,
    said: Callable[[str], None],
) -> Rounding:
    """Replays plain texts by forward passes of every given width, and compares logits."""
    dtype = jnp.dtype(getattr(model, "dtype", jnp.float32))
    epsilon = float(jnp.finfo(dtype).eps)
    nonempty = [row for row, text in enumerate(texts) if text]
    groups = [nonempty[start : start + batch_size] for start in range(0, len(nonempty), batch_size)]
    size = max((len(texts[row]) for row in nonempty), default=0)
    gaps, tops, same = np.zeros(0), np.zeros(0), np.zeros(0, bool)
    largest = largest_of_best = 0.0
    for number, group in enumerate(groups):
        said(f"rounding: {number * batch_size} of {len(nonempty)} prompts")
        rows = group + group[:1] * (min(batch_size, len(nonempty)) - len(group))
        ask = (model, params, [prompts[row] for row in rows], [texts[row] for row in rows], size)
        live = np.zeros((len(rows), size), bool)
        for place, row in enumerate(group):
            live[place, : len(texts[row])] = True
        plain = replay(*ask, width=1)
        best = plain.values[live]
        tops, gaps = np.append(tops, best[:, 0]), np.append(gaps, best[:, 0] - best[:, 1])
        for width in widths:
            wide = replay(*ask, width=width, ids=plain.ids).values[live]
            moved = np.abs(wide - best - (wide - best)[:, :1])[:, 1:]
            # NaN logits end a row, and say nothing about rounding.
            moved = np.where(np.isfinite(moved), moved, 0.0)
            largest = max(largest, float(moved[:, 0].max(initial=0.0)))
            largest_of_best = max(largest_of_best, float(moved.max(initial=0.0)))
            if width == widths[-1]:
                same = np.append(same, (wide == best).all(-1))
    magnitude = float(np.median(np.abs(tops))) if tops.size else 1.0
    floor = _FLOOR * ulp(magnitude, epsilon)
    bound = max(_MARGIN * largest, floor)
    return Rounding(
        dtype=str(dtype),
        precision=precision_of(model, params),
        epsilon=epsilon,
        width=max(widths, default=1),
        num_places=gaps.size,
        bound=bound,
        drawn_bound=max(_MARGIN * largest_of_best, floor),
        blind=float((gaps <= bound).mean()) if gaps.size else 0.0,
        equal_bits=float(same.mean()) if same.size else 1.0,
    )
