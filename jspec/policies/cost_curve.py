"""The cost curve: the time of a round by the tokens that it scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jspec import _struct as struct
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number

_POINTS = 16
"""Every curve has a multiple of so many points, so that another one compiles nothing."""
_MOST_TOKENS = 2**23
"""Whole numbers up to twice this are themselves in float32."""
_LEAST_SECONDS, _MOST_SECONDS = 1e-12, 1e12
""".. and no sum or quotient of such seconds leaves its range."""


@struct.dataclass
class CostCurve:
    """The seconds that a round takes, by the tokens that it scores.

    A round of width w scores 1 + w tokens of each row, the roots among them. Between two points the
    curve is linear, and beyond the last one it goes straight on. Only ratios decide on widths. A
    curve holds for the size of the cache that it was measured with.

    Axes: P points.

    Example:
        >>> curve = CostCurve.of({1: 0.020, 8: 0.034})
        >>> [round(seconds, 3) for seconds in curve.at([1, 2, 8, 15]).tolist()]
        [0.02, 0.022, 0.034, 0.048]
    """

    tokens: Int[Array, " P"]
    """Rising numbers of tokens that a round scores, all rows together."""
    seconds: Float[Array, " P"]
    undrafted: Float[Array, ""]
    """Of the fewest tokens in a round that drafts nothing; with more, a draft adds as much."""

    @classmethod
    def of(cls, seconds: Mapping[int, float], undrafted: float | None = None) -> "CostCurve":
        """Returns the curve through some points.

        Args:
            seconds: by the number of tokens that a round scores; one point or more.
            undrafted: seconds of a round of the fewest tokens that drafts nothing; None: as many as
                of one with a draft, as if drafting took no time.

        Raises:
            InputError: if there is no point, or a number is not a plausible one of its kind.
        """
        if not isinstance(seconds, Mapping) or not seconds:
            raise InputError(
                f"a cost curve got {seconds!r:.80}, which has no points; give {{tokens: seconds}}, "
                "one or more"
            )
        for count in seconds:
            check_integer("tokens of a round", count, 1, _MOST_TOKENS)
            _check_seconds(f"seconds of {count} tokens", seconds[count])
        if undrafted is None:
            undrafted = seconds[min(seconds)]
        _check_seconds("undrafted", undrafted)
        tokens = np.array(sorted(seconds), np.float32)
        times = np.array([seconds[count] for count in sorted(seconds)], np.float32)
        # Filled up with points of the last line.
        more = tokens[-1] + 1 + np.arange(-len(tokens) % _POINTS, dtype=np.float32)
        return cls(
            jnp.array([*tokens, *more], jnp.int32),
            jnp.asarray(np.concatenate([times, _line(np, more, tokens, times)]), jnp.float32),
            undrafted=jnp.float32(undrafted),
        )

    def at(self, tokens: Sequence[int]) -> Float[Array, " tokens"]:
        """Returns the seconds of rounds that score so many tokens."""
        # Outside of a program each operation would be compiled by itself.
        traced = isinstance(self.seconds, Tracer)
        module, curve = (jnp, self) if traced else (np, jax.device_get(self))
        times = _line(module, module.array(tokens, np.float32), curve.tokens, curve.seconds)
        # Past the last points a line of noise may fall below zero.
        return jnp.asarray(module.maximum(times, curve.seconds.min() / 2))


def _check_seconds(name: str, value: Any) -> None:
    check_number(name, value, _LEAST_SECONDS, _MOST_SECONDS, "in seconds or any other unit")


def _line(module: Any, x: Any, points: Any, values: Any) -> Any:
    """Returns the piecewise linear function through the points, extended linearly."""
    points = points.astype(np.float32)
    if points.shape[0] == 1:
        return module.full_like(x, values[0])
    # As `interp` has it, but few points are compared with all at once, not searched in a loop.
    right = module.clip((points[None] <= x[:, None]).sum(-1), 1, points.shape[0] - 1)
    rise = values[right] - values[right - 1]
    run = points[right] - points[right - 1]
    inside = values[right - 1] + (x - points[right - 1]) / run * rise
    inside = module.where(x < points[0], values[0], inside)
    inside = module.where(x >= points[-1], values[-1], inside)
    slope = (values[-1] - values[-2]) / (points[-1] - points[-2])
    return inside + module.maximum(x - points[-1], 0) * module.maximum(slope, 0)
