"""The cost curve: the time of a round by its width and by the length of the text."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int


@struct.dataclass
class CostCurve:
    """The seconds that a round takes, by context and by width; in between, linear.

    Data, all of it: another curve of the same size compiles nothing. Only ratios decide on widths.

    Axes: C contexts, W widths.

    Example:
        >>> curve = CostCurve.of({0: 0.020, 7: 0.034})
        >>> [round(float(seconds), 3) for seconds in curve.at((0, 1, 7))]
        [0.02, 0.022, 0.034]
    """

    contexts: Int[Array, " C"]
    """Rising numbers of slots that a row has."""
    widths: Int[Array, " W"]
    """Rising numbers of drafted nodes that a round verifies; 0 is plain decoding."""
    seconds: Float[Array, "C W"]

    @classmethod
    def of(cls, seconds: dict[int, float], context: int = 0) -> "CostCurve":
        """The curve through the given points, the same for every context.

        Args:
            seconds: by width.
            context: for which it was measured.
        """
        widths = sorted(seconds)
        return cls(
            contexts=jnp.array([context], jnp.int32),
            widths=jnp.array(widths, jnp.int32),
            seconds=jnp.array([[seconds[width] for width in widths]], jnp.float32),
        )

    def at(
        self, widths: Sequence[int], context: Int[Array, ""] | int = 0
    ) -> Float[Array, " widths"]:
        """The seconds of a round at each of some widths; beyond the ends, the end's.

        Args:
            widths: in drafted nodes.
            context: slots of a row.
        """
        wanted = jnp.array(widths, jnp.float32)
        here = jnp.stack(
            [
                jnp.interp(jnp.asarray(context, jnp.float32), self.contexts.astype(jnp.float32), s)
                for s in self.seconds.T
            ]
        )
        return jnp.interp(wanted, self.widths.astype(jnp.float32), here)
