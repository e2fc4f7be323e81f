"""What rounding does to the target's logits: the yardstick by which a divergence is a tie."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jspec.protocols import CausalLM
from jspec.testing.certification.forwards import Places, replay
from jspec.types import PyTree

_FLOOR = 2.0
"""Units in the last place that are rounding, whatever was measured."""
_MARGIN = 2.0
"""What was measured is the largest of a sample; a tie may need this many times as much."""


@dataclass(frozen=True)
class Noise:
    """The change of logits from forward passes of one token to wider ones."""

    width: int
    """Tokens of the wider forwards."""
    largest: float
    """The largest change of the gap between the two best tokens."""
    mean: float
    """Its root mean square."""
    largest_of_best: float
    """The largest change of the gap between the best token and any of the `BEST` best, which are
    those that sampling draws most."""


@dataclass(frozen=True)
class Rounding:
    """The rounding of a target, measured on its own plain texts without any drafter."""

    dtype: str
    """The dtype of the target's keys and values."""
    epsilon: float
    """The distance from 1 to the next number of that dtype."""
    magnitude: float
    """The median of the largest logit's absolute value, over all places."""
    noises: tuple[Noise, ...]
    num_places: int
    """Places of the texts that were measured."""
    bound: float
    """The gap between the two best tokens up to which rounding may have swapped them."""
    drawn_bound: float
    """The same of any two tokens that sampling draws."""
    blind: float
    """The share of places whose two best tokens are as near as that: a bug there looks like a
    tie."""
    same_wide: float | None
    """The share of places whose logits are equal to the last bit in a round that verifies the text
    itself and in plain decoding by forward passes as wide; None without a wider forward."""
    same_plain: float | None
    """The same against plain decoding by forward passes of one token."""

    @property
    def ulp(self) -> float:
        """The unit in the last place at the magnitude of the largest logits."""
        return ulp(self.magnitude, self.epsilon)


def ulp(value: float, epsilon: float) -> float:
    """The distance of a number of this size to the next one.

    Example:
        >>> ulp(20.0, 2**-7)  # of bfloat16
        0.125
    """
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
    """Replays plain texts by forward passes of every given width, and compares logits.

    Args:
        model: the target.
        params: its weights.
        prompts: token lists.
        texts: what plain decoding made of them.
        widths: of the forward passes beside one token.
        batch_size: rows that run together.
        said: is told what is being measured.
    """
    dtype = jnp.dtype(getattr(model, "dtype", jnp.float32))
    epsilon = float(jnp.finfo(dtype).eps)
    there = [row for row, text in enumerate(texts) if text]
    groups = [there[start : start + batch_size] for start in range(0, len(there), batch_size)]
    size = max((len(texts[row]) for row in there), default=0)
    gaps: list[np.ndarray] = []
    tops: list[np.ndarray] = []
    changes: dict[int, list[np.ndarray]] = {width: [] for width in widths}
    same_wide: list[np.ndarray] = []
    same_plain: list[np.ndarray] = []
    for number, group in enumerate(groups):
        said(f"rounding: {number * batch_size} of {len(there)} prompts")
        rows = group + group[:1] * (min(batch_size, len(there)) - len(group))
        ask = (model, params, [prompts[row] for row in rows], [texts[row] for row in rows], size)
        live = np.zeros((len(rows), size), bool)
        for place, row in enumerate(group):
            live[place, : len(texts[row])] = True
        plain = replay(*ask, width=1, advance=1)
        tops.append(plain.values[live][:, 0])
        gaps.append(plain.values[live][:, 0] - plain.values[live][:, 1])
        for width in widths:
            wide = replay(*ask, width=width, advance=width, ids=plain.ids)
            changes[width].append(_change(plain, wide)[live])
            if width < widths[-1]:
                continue
            alone = replay(*ask, width=width, advance=1, ids=plain.ids)
            same_wide.append((alone.values == wide.values).all(-1)[live])
            same_plain.append((plain.values == wide.values).all(-1)[live])
    return _summary(str(dtype), epsilon, gaps, tops, changes, same_wide, same_plain)


def _change(plain: Places, wide: Places) -> np.ndarray:
    """The change of each token's gap to the best one, [B, T, K - 1]."""
    moved = wide.values - plain.values
    return np.abs(moved[..., 1:] - moved[..., :1])


def _summary(
    dtype: str,
    epsilon: float,
    gaps: list[np.ndarray],
    tops: list[np.ndarray],
    changes: dict[int, list[np.ndarray]],
    same_wide: list[np.ndarray],
    same_plain: list[np.ndarray],
) -> Rounding:
    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts) if parts else np.zeros(0)

    gap, top = joined(gaps), joined(tops)
    noises = [_noise(width, np.concatenate(parts)) for width, parts in changes.items() if parts]
    magnitude = float(np.median(np.abs(top))) if top.size else 1.0
    floor = _FLOOR * ulp(magnitude, epsilon)
    largest = max((noise.largest for noise in noises), default=0.0)
    of_best = max((noise.largest_of_best for noise in noises), default=0.0)
    bound = max(_MARGIN * largest, floor)
    return Rounding(
        dtype=dtype,
        epsilon=epsilon,
        magnitude=magnitude,
        noises=tuple(noises),
        num_places=gap.size,
        bound=bound,
        drawn_bound=max(_MARGIN * of_best, floor),
        blind=float((gap <= bound).mean()) if gap.size else 0.0,
        same_wide=float(joined(same_wide).mean()) if same_wide else None,
        same_plain=float(joined(same_plain).mean()) if same_plain else None,
    )


def _noise(width: int, moved: Float[np.ndarray, "P K"]) -> Noise:
    # NaN logits end a row, and say nothing about rounding.
    moved = np.where(np.isfinite(moved), moved, 0.0)
    best = moved[:, 0]
    return Noise(
        width=width,
        largest=float(best.max(initial=0.0)),
        mean=float(np.sqrt(np.square(best).mean())) if best.size else 0.0,
        largest_of_best=float(moved.max(initial=0.0)),
    )
