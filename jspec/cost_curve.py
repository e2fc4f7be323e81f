"""The cost curve: the time of a round by the tokens that it scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from jspec.arguments import check_integer, check_number
from jspec.errors import InputError

_POINTS = 16
"""Every curve has a multiple of so many points, so that another one compiles nothing."""


@struct.dataclass
class CostCurve:
    """The seconds that a round takes, by cache size and by the tokens that it scores.

    A round of width w scores 1 + w tokens of each row, the roots among them. Between two points the
    curve is linear, and beyond the last ones it goes straight on. Only ratios decide on widths.

    Axes: C sizes of the cache, P points.

    Example:
        >>> curve = CostCurve.of({1: 0.020, 8: 0.034})
        >>> [round(seconds, 3) for seconds in curve.at([1, 2, 8, 15]).tolist()]
        [0.02, 0.022, 0.034, 0.048]
    """

    slots: Int[Array, " C"]
    """Rising numbers of slots of a row's cache."""
    tokens: Int[Array, " P"]
    """Rising numbers of tokens that a round scores, all rows together."""
    seconds: Float[Array, "C P"]
    undrafted: Float[Array, " C"]
    """Of a round of width 0 that drafts nothing either."""

    @classmethod
    def of(
        cls, seconds: Mapping[int, float], slots: int = 0, undrafted: float | None = None
    ) -> "CostCurve":
        """The curve through some points, the same for every size of the cache.

        Args:
            seconds: by the number of tokens that a round scores; one point or more.
            slots: the size of the cache that it was measured with.
            undrafted: seconds of a round that drafts nothing; None: as many as that of the fewest
                tokens, as if drafting took no time.

        Raises:
            InputError: if there is no point, one is not positive, or the size is negative.
        """
        check_integer("slots", slots, 0, None)
        if not seconds:
            raise InputError("a cost curve got no points; give {tokens: seconds}, one or more")
        for count in seconds:
            check_integer("tokens of a round", count, 1, None)
            check_number(f"seconds of {count} tokens", seconds[count], 0, None, above_low=True)
        if undrafted is None:
            undrafted = seconds[min(seconds)]
        check_number("undrafted", undrafted, 0, None, above_low=True)
        tokens = np.array(sorted(seconds), np.float32)
        times = np.array([seconds[count] for count in sorted(seconds)], np.float32)
        # As many points for every curve: filled up with points of the last line.
        missing = -len(tokens) % _POINTS
        more = tokens[-1] + 1 + np.arange(missing, dtype=np.float32)
        filled = np.concatenate([times, _line(np, more, tokens, times)])
        return cls(
            slots=jnp.array([slots], jnp.int32),
            tokens=jnp.array([*tokens, *more], jnp.int32),
            seconds=jnp.asarray(filled, jnp.float32)[None],
            undrafted=jnp.array([undrafted], jnp.float32),
        )

    @classmethod
    def across(cls, curves: Sequence["CostCurve"]) -> "CostCurve":
        """The curve of several that were measured with caches of different sizes.

        Args:
            curves: of one size each.

        Raises:
            InputError: if there is none, or two are of one size.

        Example:
            >>> small = CostCurve.of({1: 0.020, 8: 0.034}, slots=256)
            >>> large = CostCurve.of({1: 0.030, 8: 0.044}, slots=512)
            >>> curve = CostCurve.across([small, large])
            >>> [round(seconds, 3) for seconds in curve.at([1, 8], slots=384).tolist()]
            [0.025, 0.039]
        """
        sizes = [int(curve.slots[0]) for curve in curves]
        if not sizes or len(set(sizes)) < len(sizes):
            raise InputError(f"the curves are of sizes {sizes}; give one or more, no size twice")
        ordered = [
            curve for _, curve in sorted(zip(sizes, curves, strict=True), key=lambda x: x[0])
        ]
        tokens = ordered[0].tokens
        seconds = [curve.at(tokens.tolist(), curve.slots[0]) for curve in ordered]
        undrafted = jnp.concatenate([curve.undrafted for curve in ordered])
        return cls(jnp.array(sorted(sizes), jnp.int32), tokens, jnp.stack(seconds), undrafted)

    def at(self, tokens: Sequence[int], slots: Int[Array, ""] | int = 0) -> Float[Array, " tokens"]:
        """The seconds of a round.

        Args:
            tokens: numbers of tokens that it scores.
            slots: of a row's cache.
        """
        wanted = jnp.array(tokens, jnp.float32)
        by_tokens = jax.vmap(lambda seconds: _line(jnp, wanted, self.tokens, seconds))(self.seconds)
        size = jnp.asarray(slots, jnp.float32)
        by_slots = jax.vmap(lambda seconds: _line(jnp, size, self.slots, seconds))(by_tokens.T)
        # Past the last points a line of noise may fall below zero.
        return jnp.maximum(by_slots, self.seconds.min() / 2)

    def without_draft(self, slots: Int[Array, ""] | int = 0) -> Float[Array, ""]:
        """The seconds of a round that drafts nothing, with so many slots of a row's cache."""
        size = jnp.asarray(slots, jnp.float32)
        return jnp.maximum(_line(jnp, size, self.slots, self.undrafted), self.undrafted.min() / 2)


def _line(module: Any, x: Any, known: Any, values: Any) -> Any:
    """The piecewise linear function through the points, which goes straight on beyond the last.

    Args:
        module: numpy or jax.numpy, which the others are arrays of.
        x: where it is wanted.
        known: rising places of the points.
        values: at the points.
    """
    known = known.astype(np.float32)
    inside = module.interp(x, known, values)
    if known.shape[0] == 1:
        return inside
    slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
    return inside + module.maximum(x - known[-1], 0) * module.maximum(slope, 0)
