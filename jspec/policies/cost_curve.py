"""The cost curve: the time of a round by the tokens that it scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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
    """The seconds that a round takes, by cache size and by the tokens that it scores.

    A round of width w scores 1 + w tokens of each row, the roots among them. Between two points the
    curve is linear, and beyond the last ones it goes straight on. Only ratios decide on widths.

    Axes: C sizes of the cache, P points.

    Example:
        >>> curve = CostCurve.of({1: 0.020, 8: 0.034})
        >>> [round(seconds, 3) for seconds in curve.at([1, 2, 8, 15]).tolist()]
        [0.02, 0.022, 0.034, 0.048]
    """

    capacity: Int[Array, " C"]
    """Rising numbers of slots of a row's cache."""
    tokens: Int[Array, " P"]
    """Rising numbers of tokens that a round scores, all rows together."""
    seconds: Float[Array, "C P"]
    undrafted: Float[Array, " C"]
    """Of a round of width 0 that drafts nothing either."""

    @classmethod
    def of(
        cls, seconds: Mapping[int, float], capacity: int = 0, undrafted: float | None = None
    ) -> "CostCurve":
        """Returns the curve through some points, the same for every size of the cache.

        Args:
            seconds: by the number of tokens that a round scores; one point or more.
            capacity: the size of the cache that it was measured with.
            undrafted: seconds of a round that drafts nothing; None: as many as that of the fewest
                tokens, as if drafting took no time.

        Raises:
            InputError: if there is no point, or a number is not a plausible one of its kind.
        """
        check_integer("capacity", capacity, 0, 2**31 - 1)
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
        tokens = sorted(seconds)
        times = np.array([seconds[count] for count in tokens], np.float32)
        return cls(
            jnp.array([capacity], jnp.int32),
            *_filled(np.array(tokens), times[None]),
            undrafted=jnp.array([undrafted], jnp.float32),
        )

    @classmethod
    def across(cls, curves: Sequence["CostCurve"]) -> "CostCurve":
        """Returns the curve of several that were measured with caches of different sizes.

        It goes through the points of all of them: where one has none, it is read between its own.

        Args:
            curves: of one size each, or of several.

        Raises:
            InputError: if there is none, one is not a curve, or two are of one size.

        Example:
            >>> small = CostCurve.of({1: 0.020, 8: 0.034}, capacity=256)
            >>> large = CostCurve.of({1: 0.030, 8: 0.044}, capacity=512)
            >>> curve = CostCurve.across([small, large])
            >>> [round(seconds, 3) for seconds in curve.at([1, 8], capacity=384).tolist()]
            [0.025, 0.039]
        """
        for place, curve in enumerate(curves):
            if not isinstance(curve, cls):
                raise InputError(f"curves[{place}] is {curve!r:.80}; pass a jspec.CostCurve")
        sizes = [int(size) for curve in curves for size in curve.capacity]
        if not sizes or len(set(sizes)) < len(sizes):
            raise InputError(f"the curves are of sizes {sizes}; give one or more, no size twice")
        tokens = np.unique(np.concatenate([curve.tokens for curve in curves]))
        seconds = np.concatenate(
            [
                [_line(np, tokens.astype(np.float32), np.asarray(curve.tokens), np.asarray(known))]
                for curve in curves
                for known in curve.seconds
            ]
        )
        undrafted = np.concatenate([curve.undrafted for curve in curves])
        rising = np.argsort(sizes)
        return cls(
            jnp.array(sizes, jnp.int32)[rising],
            *_filled(tokens, seconds[rising]),
            undrafted=jnp.asarray(undrafted[rising]),
        )

    def at(
        self, tokens: Sequence[int], capacity: Int[Array, ""] | int = 0
    ) -> Float[Array, " tokens"]:
        """Returns the seconds of a round.

        Args:
            tokens: numbers of tokens that it scores.
            capacity: of a row's cache.
        """
        wanted = jnp.array(tokens, jnp.float32)
        by_tokens = jax.vmap(lambda seconds: _line(jnp, wanted, self.tokens, seconds))(self.seconds)
        size = jnp.asarray(capacity, jnp.float32)
        by_capacity = jax.vmap(lambda seconds: _line(jnp, size, self.capacity, seconds))(
            by_tokens.T
        )
        # Past the last points a line of noise may fall below zero.
        return jnp.maximum(by_capacity, self.seconds.min() / 2)

    def without_draft(self, capacity: Int[Array, ""] | int = 0) -> Float[Array, ""]:
        """Returns the seconds of a round without a draft, at a cache capacity."""
        size = jnp.asarray(capacity, jnp.float32)
        return jnp.maximum(
            _line(jnp, size, self.capacity, self.undrafted), self.undrafted.min() / 2
        )


def _check_seconds(name: str, value: Any) -> None:
    check_number(name, value, _LEAST_SECONDS, _MOST_SECONDS, "in seconds or any other unit")


def _filled(
    tokens: Int[np.ndarray, " T"], seconds: Float[np.ndarray, "C T"]
) -> tuple[Int[Array, " P"], Float[Array, "C P"]]:
    """As many points for every curve: filled up with points of the last line."""
    known = tokens.astype(np.float32)
    more = known[-1] + 1 + np.arange(-len(known) % _POINTS, dtype=np.float32)
    filled = [np.concatenate([times, _line(np, more, known, times)]) for times in seconds]
    return (
        jnp.array([*known, *more], jnp.int32),
        jnp.asarray(np.stack(filled), jnp.float32),
    )


def _line(module: Any, x: Any, known: Any, values: Any) -> Any:
    """Returns the piecewise linear function through the points, extended linearly.

    Args:
        module: numpy or jax.numpy, which the others are arrays of.
        x: where it is wanted.
        known: rising places of the points.
        values: at the points.
    """
    known = known.astype(np.float32)
    if known.shape[0] == 1:
        return module.full_like(x, values[0])
    # As `interp` has it, but few points are compared with all at once, not searched in a loop.
    right = module.clip(
        (module.expand_dims(known, tuple(range(x.ndim))) <= x[..., None]).sum(-1),
        1,
        known.shape[0] - 1,
    )
    rise = values[right] - values[right - 1]
    run = known[right] - known[right - 1]
    inside = values[right - 1] + (x - known[right - 1]) / run * rise
    inside = module.where(x < known[0], values[0], inside)
    inside = module.where(x >= known[-1], values[-1], inside)
    slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
    return inside + module.maximum(x - known[-1], 0) * module.maximum(slope, 0)
